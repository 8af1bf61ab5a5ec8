"""``collectives/algorithms/ring.py``: rings."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.collectives.closed_forms import BANDWIDTH, LATENCY, SIZE, alpha, block, elements, few, seconds
from tests.collectives.shared import us

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.planner import predict
from megatile.collectives.provenance import prove
from megatile.collectives.requests import make_job
from megatile.collectives.sweeps import count_wrong
from megatile.hda import machine
from megatile.plan.check import check
from megatile.sim import simulate
from toy_machines import chips


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_ring(n):
    """2(n-1)(α + S/nB), the additions being free on this machine (100 TFLOP/s)."""
    formula = 2 * (n - 1) * (alpha() + SIZE / n / BANDWIDTH)
    assert seconds(chips("ring", n), "ring") == pytest.approx(formula, rel=1e-3)


def test_bidirectional_ring_halves_the_bytes():
    n = 8
    formula = 2 * (n - 1) * (alpha() + SIZE / n / 2 / BANDWIDTH)
    assert seconds(chips("ring", n), "ring_bidirectional") == pytest.approx(formula, rel=1e-3)


def test_hamilton_uses_every_link_of_a_full_mesh():
    n = 8
    formula = 2 * (n - 1) * (alpha() + SIZE / n / (n - 1) / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "hamilton") == pytest.approx(formula, rel=1e-3)


def test_a_ring_differs_with_what_it_is_mapped_on():
    """A switch adds a link to every hop; a line carries the closing message all the way back."""
    on = {kind: seconds(chips(kind, 8), "ring", 8 << 10) for kind in ("ring", "full_mesh", "switch", "line")}
    assert on["ring"] == on["full_mesh"]
    assert on["switch"] == pytest.approx(on["ring"] + 14 * LATENCY, rel=1e-3)
    assert on["line"] > 1.5 * on["ring"]


@few
@given(st.integers(2, 40), elements)
def test_ring_of_any_size(n, count):
    formula = 2 * (n - 1) * (alpha() + block(count, n) / BANDWIDTH)
    assert seconds(chips("ring", n), "ring", 4 * count) == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(2, 24), elements, st.sampled_from(["reduce_scatter", "all_gather"]))
def test_half_a_ring_of_any_size(n, count, operation):
    formula = (n - 1) * (alpha() + block(count, n) / BANDWIDTH)
    took = seconds(chips("ring", n), "ring", 4 * count, operation)
    assert took == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(4, 20), st.integers(1 << 10, 1 << 20))
def test_a_ring_of_any_size_differs_with_what_it_is_mapped_on(n, count):
    on = {
        kind: seconds(chips(kind, n), "ring", 4 * count) for kind in ("ring", "full_mesh", "switch", "line")
    }
    assert on["ring"] == on["full_mesh"]
    assert on["switch"] == pytest.approx(on["ring"] + 2 * (n - 1) * LATENCY, rel=1e-3)
    assert on["line"] > on["ring"]


def test_a_ring_on_a_torus_pays_where_rows_do_not_meet():
    """On a 4 x 4 torus rank order is not a ring of neighbours: from row to row it is two links."""
    torus, ring = (
        seconds(chips("torus", 16, dims=[4, 4]), "ring", 8 << 10),
        seconds(chips("ring", 16), "ring", 8 << 10),
    )
    assert ring < torus < 2 * ring


def test_lanes_of_rings_over_nodes_do_not_hold_one_another_up():
    hda = machine("h100-cluster", nodes=2)
    in_order, staggered = (us(hda, 1 << 20, "rail_rings", "Simple", lag=lag) for lag in (1, 2))
    assert staggered < 0.95 * in_order


@pytest.mark.parametrize("lag", [1, 5])
@pytest.mark.parametrize(("gpus", "nodes"), [(2, 2), (3, 2), (4, 3)])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_staggered_rings_are_right(operation, gpus, nodes, lag):
    hda = machine("h100-cluster", gpus=gpus, nodes=nodes)
    for count, in_place, chunks in ((1, True, 1), (13, False, 1), (257, True, 3)):
        settings = {"lag": lag, "chunks": chunks}
        job, _ = make_job(operation, machine=hda, nbytes=4 * count, in_place=in_place)
        plan = find_algorithm("rail_rings").plan(job, **settings)
        check(plan)
        prove(plan, job)
    found = predict(operation, machine=hda, nbytes=4 * 257, algorithm="rail_rings", settings={"lag": lag})
    assert count_wrong(found) == 0


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 28])
def test_rings_over_nodes_take_nearly_the_time_of_the_rule_by_themselves(operation, nbytes):
    """Their lanes do not wait for each other, as channels of the library do not."""
    for name in ("h100-cluster", "h100-cluster-efa"):
        found = predict(operation, machine=machine(name), nbytes=nbytes, ranks=16)
        assert found.algorithm == "rail_rings"
        assert 0.9 < found.plan.transports[0].pace < 1.1


@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_every_rank_sends_to_the_next(algorithm):
    job, _ = make_job("send_recv", machine=machine("dgx-h100"), nbytes=8, ranks=3)
    prove(find_algorithm(algorithm).plan(job), job)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_whole_buffers_are_received_as_often_as_they_are_sent(ranks):
    job, _ = make_job("all_reduce", machine=machine("dgx-h100"), nbytes=64, ranks=ranks)
    plan = find_algorithm("ring_naive").plan(job)
    prove(plan, job)
    check(plan)
    trace = simulate(plan, machine=machine("dgx-h100")).trace
    assert len(trace.flows) == ranks * (ranks - 1)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_token_of_a_barrier_goes_round_twice(n):
    job, _ = make_job("barrier", machine=chips("ring", n), scale="chip", ranks=n)
    assert check(find_algorithm("ring").plan(job)).messages == 2 * (n - 1) * n
