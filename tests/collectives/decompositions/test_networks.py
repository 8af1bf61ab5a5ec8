"""Rings of given networks: tori, meshes, full meshes and arbitrary graphs."""

from __future__ import annotations

from dataclasses import replace

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
from megatile.hda import machine


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


def test_rings_that_were_not_asked_for_are_not_said_to_be_missing():
    """Two of the six rings of a torus: more exist, and the answer says so."""
    edges = [(a, b) for a, b in torus_rings((3, 3, 3)).arcs if a < b]
    answer = network_rings(edges, count=2).verify()
    assert len(answer.rings) == 2
    assert answer.bound == 6
    assert not answer.optimal
    assert "asked for" in answer.reason


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
