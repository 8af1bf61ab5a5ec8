"""Protocol constants: how many, explained, and what they mean in predicted times."""

import re
from pathlib import Path

import pytest

from megatile.collectives.libraries import LIBRARIES, offered
from megatile.collectives.planner import make_job, predict
from megatile.collectives.provenance import prove
from megatile.collectives.ranking import Floors
from megatile.collectives.registry import find_algorithm
from megatile.collectives.sweeps import count_wrong, sweep
from megatile.hda import machine
from megatile.hda.catalog import FOLDER, machine_names
from megatile.plan.check import check

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


def us(hda, nbytes, algorithm, path, **settings):
    found = predict(
        "all_reduce", machine=hda, nbytes=nbytes, algorithm=algorithm, path=path, settings=settings,
        in_place=True,
    )  # fmt: skip
    return found.time_ps / 1e6


def test_a_ring_is_a_start_and_a_step_per_message():
    hda = machine("dgx-h100", **{"protocol.start": "7 us", "protocol.small_step": "0.5 us"})
    assert us(hda, 8, "ring", "small") == pytest.approx(7 + 14 * 0.5, rel=0.01)


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
    sizes = [1 << k for k in (3, 12, 16, 20, 22, 24)]
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
