"""Protocol constants: how many, explained, and what they mean in predicted times."""

import re
from pathlib import Path

import pytest

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.collectives.libraries import LIBRARIES, offered
from megatile.collectives.planner import make_job, predict
from megatile.collectives.provenance import prove
from megatile.collectives.ranking import Floors, rank
from megatile.collectives.sweeps import count_wrong, sweep
from megatile.hda import machine
from megatile.hda.load import FOLDER, machine_names
from megatile.plan.check import check
from megatile.timing.library import costs
from megatile.timing.transports import ring_steps

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SECTIONS = {
    name: re.findall(r"(\w+):", text.partition("\nprotocol: {")[2].partition("source:")[0])
    for name in machine_names()
    if "\nprotocol: {" in (text := (FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", SECTIONS)
def test_at_most_six_constants_each_explained(name):
    assert 1 <= len(SECTIONS[name]) <= 6
    for page in ("collectives.md", "hda.md"):
        text = (REFERENCE / page).read_text(encoding="utf-8").partition("Protocol\n")[2]
        for constant in SECTIONS[name]:
            assert f"`{constant}`" in text, (page, constant)


def test_at_most_six_constants_act_on_a_machine():
    for name in SECTIONS:
        inherited = SECTIONS["dgx-h100"] if name == "h100-cluster" else []
        assert len({*SECTIONS[name], *inherited}) <= 6, name


def us(hda, nbytes, algorithm, path, **settings):
    found = predict(
        "all_reduce", machine=hda, nbytes=nbytes, algorithm=algorithm, path=path, settings=settings,
        in_place=True,
    )  # fmt: skip
    return found.time_ps / 1e6


def test_a_ring_is_a_start_and_a_step_per_message():
    hda = machine("dgx-h100", **{"protocol.start": "7 us", "protocol.small_step": "0.5 us"})
    assert us(hda, 128, "ring", "small") == pytest.approx(7 + 14 * 0.5, rel=0.01)


def test_a_tree_over_nodes_pays_far_steps_twice_per_level():
    constants = {"start": "7 us", "small_step": "0.5 us", "far_step": "5 us"}
    hda = machine("h100-cluster", nodes=4, **{f"protocol.{k}": v for k, v in constants.items()})
    wire = 2 * 0.5 + 0.13  # two links and a switch of the machine file
    assert us(hda, 8, "node_tree", "small") == pytest.approx(7 + 14 * 0.5 + 4 * (0.5 + 5 + wire), rel=0.02)


def test_in_switch_reduction_has_its_own_start_and_share():
    hda = machine("dgx-h100", **{"protocol.switch_step": "20 us", "protocol.switch_share": "50 %"})
    rate = 450e9 * 0.873 * 0.5
    assert us(hda, 1 << 30, "in_network", None) == pytest.approx(20 + (1 << 30) / rate * 1e6, rel=0.01)


def test_the_launch_hides_behind_longer_kernels():
    hda = machine("mi300x-8", **{"protocol.launch": "50 us", "protocol.start": "5 us"})
    captured = predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl", launch=False)
    assert captured.time_ps < 50e6
    assert predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl").time_ps == 50e6


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_a_choice_among_its_algorithms(library):
    for operation in ("all_reduce", "all_to_all"):
        found = predict(operation, machine="mi300x-8", nbytes=1 << 16, algorithm=library)
        assert found.algorithm in offered(library, operation)
        assert found.explanation is not None
        assert {c.algorithm for c in found.explanation.candidates} <= set(offered(library, operation))


def steps_in_a_row(ranks, blocks, collectives=200):
    """Ring all-reduces one after another: a rank begins when it has all sums of the one before."""
    begins, middle = [0] * ranks, 0
    for number in range(collectives):
        ends = [0] * ranks
        for block in range(blocks):
            order = [(block + 1 + i) % ranks for i in range(ranks)]
            time = begins[order[0]]
            for one in order[1:]:
                time = max(time + 1, begins[one])
            ends[block] = max(ends[block], time)
            for one in order[:-1]:
                time += 1
                ends[one] = max(ends[one], time)
        begins = ends
        if number == collectives // 2:
            middle = max(ends)
    return (max(begins) - middle) / (collectives - 1 - collectives // 2)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
def test_steps_of_rings_with_empty_blocks(ranks):
    for blocks in range(1, ranks + 1):
        assert steps_in_a_row(ranks, blocks) == pytest.approx(ring_steps(ranks, blocks), rel=0.02), blocks
    assert ring_steps(ranks, ranks) == 2 * (ranks - 1)


def test_a_library_leaves_blocks_of_a_ring_empty():
    hda = machine("dgx-h100", **{"protocol.start": "7 us", "protocol.small_step": "0.5 us"})
    for nbytes, steps in ((8, 8), (16, 8), (32, 8), (64, 12), (128, 14)):
        found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="nccl", in_place=True)
        assert found.candidate.path == "small"
        assert found.time_ps / 1e6 == pytest.approx(7 + steps * 0.5, rel=0.01)
        assert us(hda, nbytes, "ring", "small") == pytest.approx(7 + steps * 0.5, rel=0.01)


def test_channels_come_with_size():
    hda = machine("dgx-h100")
    sizes = (1 << 12, 1 << 15, 1 << 16, 1 << 18)
    times = [predict("all_reduce", machine=hda, nbytes=n, algorithm="nccl").time_ps for n in sizes]
    assert times[0] < 0.9 * times[1]
    assert times[1] == pytest.approx(times[2], rel=0.01)
    assert times[2] == pytest.approx(times[3], rel=0.01)
    rate = 450e9 * 0.873 / 12 / 2  # one channel of twelve that fill the link, half of it flags
    one, many = (
        predict("all_reduce", machine=hda, nbytes=n, algorithm="nccl").time_ps for n in (8192, 32768)
    )
    assert many - one == pytest.approx(14 * 3072 / rate * 1e12, rel=0.01)


def test_an_algorithm_without_a_path_says_so():
    hda = machine("dgx-h100")
    assert us(hda, 1 << 20, "ring", "line") > 0
    for name, path in (("tree", "line"), ("ring", "switch"), ("in_network", "small")):
        with pytest.raises(CollectiveError, match=f"'{name}' has no path '{path}'"):
            predict("all_reduce", machine=hda, nbytes=64, algorithm=name, path=path)


def test_the_line_path_lies_between():
    hda = machine("h100-cluster", nodes=2)
    small, line, bulk = (costs(hda, path, "node_tree") for path in ("small", "line", "bulk"))
    assert small.step_ps < line.step_ps < bulk.step_ps
    assert small.share < line.share < bulk.share
    assert line.start_ps > small.start_ps


@pytest.mark.parametrize(
    ("nbytes", "launch", "algorithm", "path"),
    [
        (8, True, "ring", "small"),
        (512, True, "ring", "small"),
        (1024, True, "direct", "small"),
        (256 << 10, True, "direct", "small"),
        (512 << 10, True, "direct", "bulk"),
        (16, False, "ring", "small"),
        (32, False, "direct", "small"),
        (1 << 20, False, "direct", "small"),
        (2 << 20, False, "direct", "bulk"),
    ],
)
def test_rccl_has_all_pairs_for_some_sizes(nbytes, launch, algorithm, path):
    hda = machine("mi300x-8")
    found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="rccl", launch=launch)
    assert (found.algorithm, found.candidate.path) == (algorithm, path)


def test_what_a_library_refuses_is_explained():
    hda = machine("mi300x-8")
    found = predict("all_reduce", machine=hda, nbytes=512, algorithm="rccl")
    assert "multiples of 256 elements" in str(found.explanation)
    with pytest.raises(CollectiveError, match="multiples of 256 elements"):
        predict("all_reduce", machine=hda, nbytes=512, algorithm="rccl", among=("direct",))


@pytest.mark.parametrize(("name", "library"), [("dgx-h100", "nccl"), ("mi300x-8", "rccl")])
def test_prices_of_libraries_are_lower_bounds(name, library):
    hda = machine(name)
    for nbytes in (8, 64, 4096, 1 << 17, 1 << 20):
        job, _ = make_job("all_reduce", machine=hda, nbytes=nbytes)
        for candidate in rank(hda, job, offered(library, "all_reduce"), library=library):
            if candidate.time_ps is not None:
                assert candidate.price_ps <= candidate.time_ps


def test_lanes_of_rings_over_nodes_do_not_hold_one_another_up():
    hda = machine("h100-cluster", nodes=2)
    in_order, staggered = (us(hda, 1 << 20, "rail_rings", "bulk", lag=lag) for lag in (0, 2))
    step, far = hda.protocol.step_ps / 1e6, hda.protocol.far_step_ps / 1e6 + 1.13
    alone = hda.protocol.start_ps / 1e6 + 30 * step + 4 * far
    assert staggered < 0.75 * in_order
    assert staggered == pytest.approx(alone, rel=0.1)


@pytest.mark.parametrize("lag", [1, 5])
@pytest.mark.parametrize(("gpus", "nodes"), [(2, 2), (3, 2), (4, 3)])
def test_staggered_rings_are_right(gpus, nodes, lag):
    hda = machine("h100-cluster", gpus=gpus, nodes=nodes)
    for count, in_place, chunks in ((1, True, 1), (13, False, 1), (257, True, 3)):
        settings = {"lag": lag, "chunks": chunks}
        job, _ = make_job("all_reduce", machine=hda, nbytes=4 * count, in_place=in_place)
        plan = find_algorithm("rail_rings").plan(job, **settings)
        check(plan)
        prove(plan, job)
    found = predict("all_reduce", machine=hda, nbytes=4 * 257, algorithm="rail_rings", settings={"lag": lag})
    assert count_wrong(found) == 0


def test_a_sweep_chooses_as_single_predictions_do():
    hda = machine("mi300x-8")
    sizes = [1 << k for k in (3, 9, 10, 12, 16, 18, 19, 20, 22, 24)]
    fields = {"in_place": True, "verify": False}
    for line, found in sweep("all_reduce", hda, sizes, ("auto", "rccl"), **fields):
        alone = predict("all_reduce", machine=hda, nbytes=line.size, algorithm=line.asked, in_place=True)
        assert (found.candidate.label, found.time_ps) == (alone.candidate.label, alone.time_ps)


@pytest.mark.parametrize("name", ["mi300x-8", "dgx-h100"])
def test_of_equals_a_sweep_takes_the_same_as_a_single_prediction(name):
    """With a long launch all are equally fast."""
    hda = machine(name, **{"protocol.launch": "90 us"})
    fields = {"in_place": True, "ranks": 4, "among": ["ring", "tree", "direct", "recursive_doubling"]}
    for line, found in sweep("all_reduce", hda, [64, 1 << 12, 1 << 16], verify=False, **fields):
        alone = predict("all_reduce", machine=hda, nbytes=line.size, **fields)
        assert found.time_ps == alone.time_ps == 90_000_000
        assert (found.candidate.label, found.candidate.path) == (alone.candidate.label, alone.candidate.path)


def test_floors_of_a_larger_size_are_not_used():
    hda, floors = machine("dgx-h100"), Floors()
    predict("all_reduce", machine=hda, nbytes=1 << 26, algorithm="nccl", floors=floors)
    small = predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl", floors=floors)
    assert small.time_ps == predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl").time_ps


def test_sizes_of_channels_and_blocks_are_those_of_the_machine_file() -> None:
    """Half as many channels for the size take twice the time on the wire; without empty blocks no step is
    saved."""

    def ring(nbytes: int, **figures: str) -> int:
        hda = machine("dgx-h100", **{f"library.{name}": value for name, value in figures.items()})
        found = predict(
            "all_reduce", machine=hda, nbytes=nbytes, algorithm="nccl", among=["ring"], path="small"
        )
        return found.time_ps

    assert ring(1 << 16, small_channel="8 KiB") > ring(1 << 16) > ring(1 << 16, small_channel="2 KiB")
    assert ring(16, ring_block="1 B") > ring(16)
    assert ring(16) == ring(16, ring_block="64 B")
