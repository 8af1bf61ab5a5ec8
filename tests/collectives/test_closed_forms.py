"""Simulated times against the formulas of the textbook, to 0.1 %."""

from __future__ import annotations

import pytest

from megatile.collectives.planner import make_job
from megatile.collectives.registry import find_algorithm
from megatile.collectives.toy import chips
from megatile.sim import simulate

BANDWIDTH, LATENCY, STARTUP, MEMORY = 100e9, 500e-9, 1e-6, 100e-9
SIZE = 1 << 24


def seconds(machine, algorithm, nbytes=SIZE, operation="all_reduce", **options):
    job, _ = make_job(operation, machine=machine, nbytes=nbytes, in_place=True)
    return simulate(find_algorithm(algorithm).plan(job, **options), machine=machine).time_ps * 1e-12


def alpha(links=1):
    """What a message takes besides its bytes: start, both memories, the links."""
    return STARTUP + 2 * MEMORY + links * LATENCY


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_ring(n):
    """2(n-1)(α + S/nB), the additions being free on this machine (100 TFLOP/s)."""
    formula = 2 * (n - 1) * (alpha() + SIZE / n / BANDWIDTH)
    assert seconds(chips("ring", n), "ring") == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("n", [4, 8, 16])
def test_halving_doubling_on_a_full_mesh(n):
    rounds = n.bit_length() - 1
    formula = 2 * (rounds * alpha() + (n - 1) / n * SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "halving_doubling") == pytest.approx(formula, rel=1e-3)


def test_recursive_doubling_on_a_full_mesh():
    formula = 3 * (alpha() + SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", 8), "recursive_doubling") == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("n", [4, 8])
def test_direct_on_a_full_mesh(n):
    """Both phases send a block over every link at once."""
    formula = 2 * (alpha() + SIZE / n / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "direct") == pytest.approx(formula, rel=1e-3)


def test_tree_on_a_full_mesh():
    """15 ranks, three levels: three messages of everything up and three down; each inner node sends to its
    children over different links."""
    formula = 6 * (alpha() + SIZE / BANDWIDTH)
    assert seconds(chips("full_mesh", 15), "tree") == pytest.approx(formula, rel=1e-3)


def test_torus_by_dimension():
    n = 8
    along_x = 2 * (n - 1) * (alpha() + SIZE / n / BANDWIDTH)
    along_y = 2 * (n - 1) * (alpha() + SIZE / n / n / BANDWIDTH)
    machine = chips("torus", n * n, dims=[n, n])
    assert seconds(machine, "by_dimension") == pytest.approx(along_x + along_y, rel=1e-3)


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


def test_direct_is_several_times_slower_on_a_ring():
    assert seconds(chips("ring", 8), "direct") > 3 * seconds(chips("full_mesh", 8), "direct")


def test_chunks_hide_latency_in_a_chain():
    machine = chips("ring", 8)
    whole = seconds(machine, "ring", operation="broadcast")
    assert seconds(machine, "ring", operation="broadcast", chunks=16) < whole / 3
