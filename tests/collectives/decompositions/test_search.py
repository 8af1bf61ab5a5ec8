"""``collectives/decompositions/search.py``: hamiltonian cycles that share no link, for graphs without a
known construction."""

from __future__ import annotations

from itertools import permutations

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from megatile.collectives.decompositions import mesh_rings, network_rings
from megatile.collectives.decompositions.search import adjacency_of, cut_bound


@pytest.mark.parametrize("dims", [(4, 4, 4), (2, 4, 4), (2, 2, 2, 3)])
def test_meshes_that_no_search_decides_claim_no_more_than_is_known(dims):
    answer = mesh_rings(dims, budget=2000).verify()
    assert len(answer.rings) >= 2
    assert answer.bound == len(dims)
    assert not answer.optimal
    assert f"at most {len(dims)} exist" in str(answer)
    assert "stopped after" in answer.reason


def test_petersen_graph_has_none_and_that_is_proven():
    answer = network_rings(nx.petersen_graph().edges)
    assert answer.rings == ()
    assert answer.optimal
    assert "exhaustive" in answer.reason


def test_a_search_that_stops_says_so():
    answer = network_rings(nx.petersen_graph().edges, budget=5)
    assert not answer.optimal
    assert "stopped after 5 steps" in answer.reason


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


def test_two_halves_joined_by_few_links_are_bound_by_them():
    halves = [*nx.complete_graph(6).edges, *((a + 6, b + 6) for a, b in nx.complete_graph(6).edges)]
    answer = network_rings([*halves, (0, 6), (1, 7)], budget=3000).verify()
    assert answer.bound == 2
    assert "cut" in answer.reason or answer.optimal
