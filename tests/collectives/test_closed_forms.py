"""Simulated times against the formulas of the textbook, to 0.1 %."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from megatile.collectives.algorithms import find_algorithm
from megatile.collectives.requests import make_job
from megatile.sim import simulate
from toy_machines import chips

BANDWIDTH, LATENCY, STARTUP, MEMORY = 100e9, 500e-9, 1e-6, 100e-9
FLOPS = 100e12
SIZE = 1 << 24


def seconds(machine, algorithm, nbytes=SIZE, operation="all_reduce", **options):
    job, _ = make_job(operation, machine=machine, nbytes=nbytes, in_place=True)
    return simulate(find_algorithm(algorithm).plan(job, **options), machine=machine).time_ps * 1e-12


few = settings(max_examples=12, deadline=None)
elements = st.integers(1 << 16, 1 << 26)


def block(count, parts):
    """Bytes of the largest of ``parts`` blocks."""
    return 4 * -(-count // parts)


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


# --- any number of ranks and any size ------------------------------------------------------------


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


@few
@given(st.integers(2, 24), elements)
def test_direct_of_any_size(n, count):
    """All blocks come at once and are added one after the other."""
    adding = (n - 1) * block(count, n) / 4 / FLOPS
    formula = 2 * (alpha() + block(count, n) / BANDWIDTH) + adding
    assert seconds(chips("full_mesh", n), "direct", 4 * count) == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(2, 40), elements)
def test_tree_of_any_size(n, count):
    """As many messages of everything up and down as the deepest rank has ranks above it."""
    depth = n.bit_length() - 1
    formula = 2 * depth * (alpha() + 4 * count / BANDWIDTH)
    assert seconds(chips("full_mesh", n), "tree", 4 * count) == pytest.approx(formula, rel=1e-3)


@few
@given(st.integers(2, 9), st.integers(2, 9), elements)
def test_torus_of_any_size(x, y, count):
    along_x = 2 * (x - 1) * (alpha() + block(count, x) / BANDWIDTH)
    along_y = 2 * (y - 1) * (alpha() + block(-(-count // x), y) / BANDWIDTH)
    took = seconds(chips("torus", x * y, dims=[x, y]), "by_dimension", 4 * count)
    assert took == pytest.approx(along_x + along_y, rel=1e-3)


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
