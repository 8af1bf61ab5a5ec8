"""What machine files leave out: reported with the figure it costs."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
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


def quad(drop=(), bandwidth=None, units=4, **memory):
    """Some cores with a mesh in one chip, without the named memories and engines."""
    layers = [
        {"name": "regs", "level": "core", "size": "64 KiB", "aliases": ["l0"]},
        {"name": "sram", "level": "core", "size": "1 MiB", "aliases": ["l1"]},
        {"name": "hbm", "level": "chip", "size": "1 GiB", "aliases": ["l2"], **memory},
    ]
    engines = [
        {"name": "mma", "kind": "tensor", "level": "core", "throughput": {"any": "1 TFLOP/s"}},
        {"name": "alu", "kind": "vector", "level": "core", "throughput": {"any": "1 TFLOP/s"}},
        {"name": "dma", "kind": "dma", "level": "core", "channels": 5, "bandwidth": bandwidth},
    ]
    rates = {"bandwidth": "100 GB/s", "latency": "10 ns"}
    return HDA.from_dict(
        {
            "hw_spec": {
                "pe": [{"name": "core", "num_units": 1}],
                "pe_groups": [{"name": "chip", "num_units": units}],
            },
            "hw_abstr": [{"name": "block", "target": "core"}, {"name": "device", "target": "chip"}],
            "memory": [rates | layer for layer in layers if layer["name"] not in drop],
            "networks": [{"name": "noc", "level": "chip", "topology": "mesh", **rates}],
            "engines": [engine for engine in engines if engine["name"] not in drop],
        }
    )


def double():
    @T.program
    def kernel(A: T.Tensor((256,), "f32")):
        with T.Kernel(block=4, threads=32) as b:
            x = T.alloc((64,), "f32", level="l1")
            T.copy(x, A[b * 64])
            for i in T.Parallel(64):
                x[i] = x[i] * 2
            T.copy(A[b * 64], x)

    return kernel


def test_a_machine_without_registers_keeps_their_tiles_in_the_scratchpad():
    (note,) = lint(quad(["regs"], bandwidth="50 GB/s"))
    assert "no memory is called 'l0', which holds tiles in registers: they lie in 'sram'" in note.message
    assert mt.simulate(double(), machine=quad(["regs"])).time_ps > 0
    a = np.ones(256, "f4")
    mt.run(double(), a, machine=quad(["regs"]))
    assert (a == 2).all()


def test_a_missing_standard_memory_is_reported_with_what_it_is_for():
    (note, _) = lint(quad(["sram"]))
    assert "no memory is called 'l1'" in note.message
    assert "refused" in note.message
    with pytest.raises(MegatileError, match="no memory 'l1'") as caught:
        mt.simulate(double(), machine=quad(["sram"]))
    assert "add 'aliases: [l1]' to the memory that holds shared tiles of a block" in caught.value.advice


def test_gemms_without_a_tensor_engine_are_reported():
    assert "GEMMs run on 'alu'" in lint(quad(["mma"]))[0].message
    assert "GEMMs are refused" in lint(quad(["mma", "alu"]))[0].message


def test_loads_that_do_not_cross_the_network_are_reported():
    (note,) = lint(quad())
    assert note.path == "networks.noc"
    assert "loads from 'hbm' do not cross 'noc'" in note.message
    assert "bandwidth: 100 GB/s in its DMA engine" in note.advice
    assert lint(quad(units=2)) == [note]
    assert lint(quad(units=1)) == []
    assert lint(quad(slices=4)) == lint(quad(bandwidth="100 GB/s")) == []
    assert lint(quad(bandwidth="101 GB/s")) == [note]
    slow = {"networks.noc.bandwidth": "1 GB/s"}
    time = mt.simulate(double(), machine=quad()).time_ps
    assert mt.simulate(double(), machine=HDA.from_dict(quad().to_dict(), **slow)).time_ps == time
    assert mt.simulate(double(), machine=quad(bandwidth="1 GB/s")).time_ps > time
