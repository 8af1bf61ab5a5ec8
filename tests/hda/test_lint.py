"""What machine files leave out: reported with the figure it costs."""

import pytest

import megatile as mt
from megatile.collectives.planner import predict
from megatile.core.errors import MachineError, MegatileError
from megatile.hda import HDA, machine
from megatile.hda.lint import lint
from toy_machines import chips


def changed(hda, **changes):
    data = hda.to_dict()
    for name, value in changes.items():
        data["engines"][-1][name] = value
    return HDA.from_dict(data)


def test_channels_change_times_smoothly():
    """Every channel more lets one link more work beside the others; none of them doubles the speed."""
    base = chips("full_mesh", 8)
    asked = {"nbytes": 8 << 20, "algorithm": "direct"}
    times = [predict("all_to_all", machine=changed(base, channels=n), **asked).time_ps for n in range(2, 20)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 5 * times[-1]
    assert len(set(times)) > 3
    assert times[6:] == [times[-1]] * len(times[6:]), "seven links need seven channels, and one for copies"


def test_few_channels_are_reported():
    (note,) = lint(changed(chips("full_mesh", 8), channels=4))
    assert note.path == "engines.ports"
    assert "4 channels serve 7 links of 'links'" in note.message
    assert "300 GB/s of 700 GB/s" in note.message
    assert lint(changed(chips("full_mesh", 8), channels=8)) == []
    assert lint(changed(chips("switch", 8), channels=2)) == []


def test_no_dma_engine_is_reported():
    data = chips("switch", 8).to_dict()
    data["engines"] = [e for e in data["engines"] if e["kind"] != "dma"]
    (note,) = lint(HDA.from_dict(data))
    assert "no DMA engine" in note.message
    assert "1 us" in note.message.replace("µ", "u")


def test_transports_without_networks_are_reported():
    data = machine("mi300x-8").to_dict()
    data["networks"] = []
    (note,) = [note for note in lint(HDA.from_dict(data)) if note.path == "transports"]
    assert "no network joins devices" in note.message
    with pytest.raises(MegatileError, match="describes no network between devices"):
        mt.collective("all_reduce", machine=HDA.from_dict(data), nbytes=1024)


def test_a_missing_gateway_is_reported():
    data = machine("ahbm").to_dict()
    assert "networks.noc" not in {note.path for note in lint(HDA.from_dict(data))}
    del next(n for n in data["networks"] if n["name"] == "noc")["gateway"]
    found = {note.path: note.message for note in lint(HDA.from_dict(data))}
    words = "what a pe sends over 'cubes' does not cross 'noc' (up to 8 ns at 256 GB/s)"
    assert words in found["networks.noc"]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("memory.l2_cache.of", "hmb", "there is no memory 'hmb'"),
        ("memory.l2_cache.of", "shared", "'shared' does not lie behind 'l2_cache'"),
        ("memory.l2_cache.of", "l2_cache", "does not lie behind"),
        ("memory.l2_cache.block", "3 KiB", "not a multiple of blocks"),
        ("memory.hbm.block", "4 KiB", "'hbm' is not a cache"),
        ("memory.l2_cache.write", "sometimes", "'sometimes' is not known here"),
    ],
)
def test_wrong_caches_are_refused(path, value, words):
    with pytest.raises(MachineError, match=words):
        machine("dgx-h100", **{path: value})


@pytest.mark.parametrize("name", ["dgx-h100", "h100-cluster", "hgx-a100", "mi300x-8", "cpu"])
def test_caches_of_shipped_machines_stand_in_front_of_a_memory(name):
    hda = mt.machine(name)
    caches = [m for m in hda.memories if m.cache]
    assert caches
    for cache in caches:
        assert cache.block
        behind = cache
        while behind.cache:
            behind = hda.memory(behind.of)
        assert not behind.cache
    source = {m.name: m.source for m in hda.spec.memory}
    assert all({"block", "write"} <= set(source[c.name]) for c in caches)


@pytest.mark.parametrize(
    ("name", "threads", "blocks", "shared"),
    [("dgx-h100", 2048, 32, 227 << 10), ("mi300x-8", 2048, 32, 64 << 10), ("hgx-a100", 2048, 32, 163 << 10)],
)
def test_limits_of_residency(name, threads, blocks, shared):
    hda = mt.machine(name)
    thread, block = hda.scale("thread"), hda.scale("block")
    assert thread.max_resident * hda.level(thread.level).total // hda.level(block.level).total == threads
    assert (block.max_resident, thread.limits["block"]) == (blocks, 1024)
    assert hda.memory("shared").available == shared
    assert hda.memory("registers").per_thread in (1020, 2048)
    assert HDA.from_dict(hda.to_dict()).memories == hda.memories
