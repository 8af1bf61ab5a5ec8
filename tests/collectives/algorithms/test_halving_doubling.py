"""``collectives/algorithms/halving_doubling.py``: log2(n) rounds with partners at distance 1, 2, 4, …."""

import pytest
from hypothesis import given, strategies as st
from tests.collectives.closed_forms import BANDWIDTH, SIZE, alpha, block, elements, few, seconds
from tests.collectives.shared import NIC

import megatile as mt
from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.job import CollectiveError
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.collectives.requests import make_job
from toy_machines import chips


@pytest.mark.parametrize("ranks", [3, 5, 8, 12, 16, 32])
@pytest.mark.parametrize("count", [1, 7, 96])
def test_halving_doubling_is_right(ranks, count):
    job, _ = make_job("all_reduce", machine=mt.machine("h100-cluster"), nbytes=4 * count, ranks=ranks)
    prove(find_algorithm("halving_doubling").plan(job), job)


def test_the_largest_blocks_of_halving_doubling_stay_inside_nodes():
    hda = mt.machine("h100-cluster", nodes=4)
    nbytes = 64 << 20
    found = predict("all_reduce", machine=hda, nbytes=nbytes, algorithm="halving_doubling")
    # Inside a node 1/2, 1/4 and 1/8 are exchanged; 1/16 and 1/32 go between nodes, each twice.
    far = 2 * nbytes * (1 / 16 + 1 / 32) / NIC
    near = 2 * nbytes * (1 / 2 + 1 / 4 + 1 / 8) / hda.network("nvlink").effective_bandwidth
    assert found.time_ps * 1e-12 <= 1.35 * (far + near)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
@pytest.mark.parametrize("ranks", [2, 4, 16, 32])
@pytest.mark.parametrize("in_place", [False, True])
def test_blocks_that_go_to_the_nearest_partner_first_come_home(operation, ranks, in_place):
    hda, options = mt.machine("h100-cluster"), {"ranks": ranks, "in_place": in_place}
    job, _ = make_job(operation, machine=hda, nbytes=12 * ranks, **options)
    prove(find_algorithm("halving_doubling").plan(job, near=True), job)
    uneven, _ = make_job(operation, machine=hda, nbytes=12 * ranks + 4, **options)
    with pytest.raises(CollectiveError, match="needs blocks of one size"):
        find_algorithm("halving_doubling").plan(uneven, near=True)


@pytest.mark.parametrize("operation", ["reduce_scatter", "all_gather"])
def test_large_blocks_to_near_partners_are_chosen_between_nodes(operation):
    hda, nbytes = mt.machine("h100-cluster", nodes=2), 4 << 20
    far = predict(operation, machine=hda, nbytes=nbytes, algorithm="halving_doubling")
    found = predict(operation, machine=hda, nbytes=nbytes, algorithm="fastest")
    assert found.candidate.label == "halving_doubling(near=True)"
    assert found.time_ps < 0.6 * far.time_ps
    # Also where the copies of the blocks cost time of their own.
    plans = [
        mt.collective(
            operation,
            machine=hda,
            nbytes=nbytes,
            algorithm="halving_doubling",
            settings=settings,
            transport="copy_engine",
        )
        for settings in ({}, {"near": True})
    ]
    times = [mt.simulate(plan, machine=hda).time_ps for plan in plans]
    assert times[1] < 0.65 * times[0]


@pytest.mark.parametrize("n", [4, 8, 16])
def test_halving_doubling_on_a_full_mesh(n):
    rounds = n.bit_length() - 1
    formula = 2 * (rounds * alpha() + (n - 1) / n * SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "halving_doubling") == pytest.approx(formula, rel=1e-3)


def test_recursive_doubling_on_a_full_mesh():
    formula = 3 * (alpha() + SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", 8), "recursive_doubling") == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(2, 33), elements)
def test_halving_doubling_of_any_size(n, count):
    """Ranks beyond a power of two hand in everything first and get everything back at the end."""
    rounds = n.bit_length() - 1
    core = 1 << rounds
    formula = 2 * (rounds * alpha() + (core - 1) * block(count, core) / BANDWIDTH)
    if core != n:
        formula += 2 * (alpha() + 4 * count / BANDWIDTH)
    took = seconds(chips("full_mesh", n), "halving_doubling", 4 * count)
    assert took == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_blocks_that_travel_by_the_bits_of_their_distance_arrive(ranks):
    job, _ = make_job("all_to_all", machine=mt.machine("h100-cluster"), nbytes=8 * ranks, ranks=ranks)
    prove(find_algorithm("bruck").plan(job), job)
