"""The figures of libraries: what they mean in predicted times."""

import pytest
from tests.collectives.shared import nccl, us

from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import predict
from megatile.collectives.ranking import Floors
from megatile.hda import machine
from megatile.plan.check import check
from megatile.timing.collective_choice import rule_of
from megatile.timing.collective_rule import RING_BLOCK


def test_a_ring_is_a_start_and_a_step_per_slot():
    """The last slot sends nothing and takes as long as the others."""
    hda = nccl(LL_start="7 us", LL_step="0.5 us", LL_first="0 us")
    assert us(hda, 128, "ring", "LL") == pytest.approx(7 + 15 * 0.5, rel=0.01)


def test_the_launch_hides_behind_longer_kernels():
    hda = machine("mi300x-8", **{"transports.device.rccl.launch": "50 us"})
    captured = predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl", launch=False)
    assert captured.time_ps < 50e6
    assert predict("all_reduce", machine=hda, nbytes=1 << 10, algorithm="rccl").time_ps == 50e6


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
    rule = rule_of(machine("dgx-h100"))
    for blocks in range(1, ranks + 1):
        steps = 2 * (ranks - 1) - rule.saved_steps("all_reduce", ranks, RING_BLOCK * blocks)
        assert steps_in_a_row(ranks, blocks) == pytest.approx(steps, rel=0.02), blocks
    assert rule.saved_steps("all_reduce", ranks, RING_BLOCK * ranks) == 0


def test_a_library_leaves_blocks_of_a_ring_empty():
    hda = nccl(LL_start="7 us", LL_step="0.5 us", LL_first="0 us", LL_next="0 us")
    for nbytes, steps in ((8, 8), (16, 8), (32, 8), (64, 12), (128, 14)):
        found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="nccl", in_place=True)
        assert found.model == "NCCL ring, LL"
        assert found.time_ps / 1e6 == pytest.approx(7 + (steps + 1) * 0.5, rel=0.01)
        assert us(hda, nbytes, "ring", None) == found.time_ps / 1e6


def test_channels_come_with_size():
    sizes = (1 << 12, 1 << 15, 1 << 20, 1 << 26)
    plans = [predict("all_reduce", machine="dgx-h100", nbytes=n, algorithm="ring").plan for n in sizes]
    assert [plan.transports[0].channels for plan in plans] == [1.0, 1.0, 24.0, 24.0]


def test_an_algorithm_without_a_protocol_says_so():
    hda = machine("dgx-h100")
    assert us(hda, 1 << 20, "ring", "LL128") > 0
    for name, protocol in (("tree", "LL128"), ("ring", "NVLS"), ("in_network", "LL")):
        with pytest.raises(CollectiveError, match=f"'{name}' has no protocol '{protocol}'"):
            predict("all_reduce", machine=hda, nbytes=64, algorithm=name, protocol=protocol)


@pytest.mark.parametrize(
    ("nbytes", "launch", "algorithm", "protocol"),
    [
        (8, True, "ring", "LL"),
        (512, True, "ring", "LL"),
        (1024, True, "direct", "LL"),
        (256 << 10, True, "direct", "LL"),
        (512 << 10, True, "direct", "Simple"),
        (16, False, "ring", "LL"),
        (32, False, "direct", "MSCCL++"),
        (1 << 20, False, "direct", "MSCCL++"),
        (2 << 20, False, "direct", "Simple"),
    ],
)
def test_rccl_has_all_pairs_for_some_sizes(nbytes, launch, algorithm, protocol):
    hda = machine("mi300x-8")
    found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="rccl", launch=launch)
    assert (found.algorithm, found.candidate.protocol) == (algorithm, protocol)


def test_variables_of_nccl_are_options():
    asked = {"machine": "dgx-h100", "nbytes": 64 << 20}
    assert predict("all_reduce", **asked).model == "NCCL NVLS"
    without = predict("all_reduce", **asked, env={"NCCL_NVLS_ENABLE": "0"})
    assert without.model == "NCCL ring, Simple"
    assert (
        predict("all_reduce", **asked, env={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}).model == "NCCL ring, LL"
    )


def test_floors_of_a_larger_size_are_not_used():
    hda, floors = machine("dgx-h100"), Floors()
    predict("all_reduce", machine=hda, nbytes=1 << 26, algorithm="nccl", floors=floors)
    small = predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl", floors=floors)
    assert small.time_ps == predict("all_reduce", machine=hda, nbytes=64, algorithm="nccl").time_ps


@pytest.mark.parametrize("name", ["dgx-h100", "h100-cluster", "mi300x-8", "v100-8"])
def test_a_barrier_of_a_library_is_an_all_reduce_of_one_element(name):
    barrier, reduced = (predict(op, machine=name, nbytes=4) for op in ("barrier", "all_reduce"))
    assert barrier.time_ps == pytest.approx(reduced.time_ps, rel=0.01)
    assert barrier.model == reduced.model
    check(barrier.plan, name)
