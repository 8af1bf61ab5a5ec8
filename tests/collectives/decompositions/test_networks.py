"""Rings of given networks: tori, meshes, full meshes and arbitrary graphs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from megatile.collectives.decompositions import (
    DecompositionError,
    NetworkRings,
    full_mesh_rings,
    mesh_rings,
    network_rings,
    topology_rings,
    torus_rings,
)
from megatile.collectives.decompositions.search import adjacency_of, cut_bound
from megatile.hda import machine
from megatile.hda.direct import Grid


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 14), st.integers(3, 14))
def test_every_torus_of_two_dimensions_is_four_rings(a, b):
    answer = torus_rings((a, b)).verify()
    assert len(answer.rings) == 4
    assert answer.optimal
    graph = nx.grid_2d_graph(a, b, periodic=True)
    assert {(x[0] * b + x[1], y[0] * b + y[1]) for x, y in graph.to_directed().edges} == answer.arcs


@pytest.mark.parametrize("dims", [(7,), (1, 5, 3), (3, 4, 5), (4, 4, 4), (3, 3, 3, 3), (16, 16)])
def test_tori_of_other_dimensions(dims):
    answer = torus_rings(dims).verify()
    assert len(answer.rings) == 2 * sum(d > 1 for d in dims)
    assert sum(len(r) for r in answer.rings) == len(answer.arcs)


@pytest.mark.parametrize(("dims", "count"), [((2, 4), 2), ((2, 2, 2, 2), 4), ((2, 2), 2), ((2, 3), 2)])
def test_sides_of_two_have_no_second_link(dims, count):
    assert len(torus_rings(dims).verify().rings) == count


@pytest.mark.parametrize("dims", [(2, 2), (4, 5), (5, 4), (2, 9), (1, 4, 3), (30, 1, 30)])
def test_meshes_with_an_even_number_of_ranks(dims):
    answer = mesh_rings(dims).verify()
    assert len(answer.rings) == answer.bound == 2
    assert answer.optimal


@pytest.mark.parametrize(
    ("dims", "count", "bound"), [((2, 2, 2), 2, 2), ((2, 2, 3), 2, 2), ((3, 2, 3), 3, 3), ((2, 2, 4), 2, 2)]
)
def test_small_meshes_of_three_dimensions_are_decided(dims, count, bound):
    """Counted by hand over all sets of cycles: a corner of three links may serve three rings, or not."""
    answer = mesh_rings(dims, budget=400_000).verify()
    assert (len(answer.rings), answer.bound, answer.optimal) == (count, bound, True)


@pytest.mark.parametrize("dims", [(4, 4, 4), (2, 4, 4), (2, 2, 2, 3)])
def test_meshes_that_no_search_decides_claim_no_more_than_is_known(dims):
    answer = mesh_rings(dims, budget=2000).verify()
    assert len(answer.rings) >= 2
    assert answer.bound == len(dims)
    assert not answer.optimal
    assert f"at most {len(dims)} exist" in str(answer)
    assert "stopped after" in answer.reason


def test_an_odd_mesh_has_no_ring_and_says_why():
    answer = mesh_rings((3, 5))
    assert answer.rings == ()
    assert answer.optimal
    assert "bipartite" in answer.reason


@pytest.mark.parametrize(("n", "count"), [(2, 1), (3, 2), (4, 2), (5, 4), (6, 4), (8, 7), (16, 15)])
def test_full_meshes(n, count):
    assert len(full_mesh_rings(n).verify().rings) == count
    edges = [(a, b) for a in range(n) for b in range(a)]
    assert len(network_rings(edges).verify().rings) == count


def test_petersen_graph_has_none_and_that_is_proven():
    answer = network_rings(nx.petersen_graph().edges)
    assert answer.rings == ()
    assert answer.optimal
    assert "exhaustive" in answer.reason


def test_a_search_that_stops_says_so():
    answer = network_rings(nx.petersen_graph().edges, budget=5)
    assert not answer.optimal
    assert "stopped after 5 steps" in answer.reason


def test_directed_networks_and_a_limited_number_of_rings():
    answer = network_rings([(0, 1), (1, 2), (2, 0), (1, 0)], directed=True).verify()
    assert answer.rings == ((0, 1, 2),)
    assert len(network_rings(nx.complete_graph(7).edges, count=3).rings) == 3


@pytest.mark.parametrize(
    ("name", "network", "count"),
    [("mi300x-8", "xgmi", 7), ("ahbm", "noc", 2), ("ahbm", "cubes", 2), ("dgx-h100", "nvlink", 7)],
)
def test_networks_of_machines(name, network, count):
    topology = next(n.topology for n in machine(name).networks if n.name == network)
    answer = topology_rings(topology)
    assert len(answer.rings) == count
    assert all(b in topology.neighbors(a) for a, b in answer.arcs)


def test_tori_of_machines_count_their_first_dimension_fastest():
    torus = Grid(size=15, kind="torus", extents=(3, 5), wrap=(True, True))
    assert len(topology_rings(torus).rings) == 4
    mixed = Grid(size=12, kind="mesh", extents=(4, 3), wrap=(True, False))
    answer = topology_rings(mixed)
    assert answer.rings
    assert answer.verify().ranks == 12


def test_links_outside_the_network():
    with pytest.raises(DecompositionError, match="outside"):
        network_rings([(0, 9)], ranks=3)
    with pytest.raises(DecompositionError, match="positive"):
        torus_rings((0, 3))


def test_the_verifier_sees_defects():
    arcs = frozenset({(0, 1), (1, 2), (2, 0)})
    with pytest.raises(DecompositionError, match="serves two"):
        NetworkRings(((0, 1, 2), (1, 2, 0)), arcs, 3, 1, "").verify()
    with pytest.raises(DecompositionError, match="no link"):
        NetworkRings(((0, 2, 1),), arcs, 3, 1, "").verify()
    with pytest.raises(DecompositionError, match="visit"):
        NetworkRings(((0, 1),), arcs, 3, 1, "").verify()
    for bound in (0, 2):
        with pytest.raises(DecompositionError, match="at most"):
            NetworkRings(((0, 1, 2),), arcs, 3, bound, "").verify()


@pytest.mark.parametrize(
    ("graph", "count"),
    [
        (nx.complete_bipartite_graph(3, 3), 3),
        (nx.circulant_graph(10, [1, 5]), 3),
        (nx.hypercube_graph(3), 2),
        (nx.circular_ladder_graph(3), 2),
    ],
)
def test_an_odd_number_of_links_may_serve_an_odd_number_of_rings(graph, count):
    """Rings need not come in pairs of opposite directions: the best of a search by hand over all subsets."""
    answer = network_rings(nx.convert_node_labels_to_integers(graph).edges).verify()
    assert len(answer.rings) == count
    assert answer.optimal


def test_fewer_rings_than_links_are_not_called_optimal_without_a_proof():
    answer = network_rings(nx.complete_bipartite_graph(7, 7).edges, budget=300).verify()
    assert len(answer.rings) == 7 or not answer.optimal


def most_by_hand(n: int, arcs: frozenset[tuple[int, int]]) -> int:
    """The largest set of arc-disjoint Hamiltonian cycles, by trying all sets."""
    every = [
        frozenset(zip((0, *rest), (*rest, 0), strict=True))
        for rest in permutations(range(1, n))
        if all(arc in arcs for arc in zip((0, *rest), (*rest, 0), strict=True))
    ]

    def most(left: list[frozenset[tuple[int, int]]]) -> int:
        best = 0
        for i, cycle in enumerate(left):
            best = max(best, 1 + most([other for other in left[i + 1 :] if not other & cycle]))
        return best

    return most(every)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(2, 6), st.booleans(), st.sampled_from([3, 40, 200_000]))
def test_bounds_and_claims_against_all_sets_of_cycles(data, n, directed, budget):
    pairs = [(a, b) for a in range(n) for b in range(n) if (a != b if directed else a < b)]
    few = (
        [pair for pair in pairs if data.draw(st.integers(0, 3))]
        if n < 6
        else pairs[:: data.draw(st.integers(1, 2))]
    )
    answer = network_rings(few, ranks=n, directed=directed, budget=budget).verify()
    if len(answer.arcs) > 22:
        return
    truth = most_by_hand(n, answer.arcs)
    assert len(answer.rings) <= truth <= answer.bound
    assert answer.optimal == (len(answer.rings) == answer.bound)
    if budget == 200_000:
        assert answer.optimal
    assert cut_bound(adjacency_of(answer.arcs, n), answer.arcs) >= truth


def test_rings_that_were_not_asked_for_are_not_said_to_be_missing():
    """Two of the six rings of a torus: more exist, and the answer says so."""
    edges = [(a, b) for a, b in torus_rings((3, 3, 3)).arcs if a < b]
    answer = network_rings(edges, count=2).verify()
    assert len(answer.rings) == 2
    assert answer.bound == 6
    assert not answer.optimal
    assert "asked for" in answer.reason


def test_two_halves_joined_by_few_links_are_bound_by_them():
    halves = [*nx.complete_graph(6).edges, *((a + 6, b + 6) for a, b in nx.complete_graph(6).edges)]
    answer = network_rings([*halves, (0, 6), (1, 7)], budget=3000).verify()
    assert answer.bound == 2
    assert "cut" in answer.reason or answer.optimal


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([(3, 4), (4, 4), (3, 3, 3)]))
def test_a_changed_answer_is_refused(data, dims):
    answer = torus_rings(dims)
    rings = [list(ring) for ring in answer.rings]
    ring = data.draw(st.sampled_from(rings))
    i, j = data.draw(st.lists(st.integers(0, len(ring) - 1), min_size=2, max_size=2, unique=True))
    ring[i], ring[j] = ring[j], ring[i]
    with pytest.raises(DecompositionError):
        replace(answer, rings=tuple(map(tuple, rings))).verify()
