"""``collectives/decompositions/torus.py``: edge-disjoint Hamiltonian cycles of tori by switching squares."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings, strategies as st

from megatile.collectives.decompositions import topology_rings, torus_rings
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


def test_tori_of_machines_count_their_first_dimension_fastest():
    torus = Grid(size=15, kind="torus", extents=(3, 5), wrap=(True, True))
    assert len(topology_rings(torus).rings) == 4
    mixed = Grid(size=12, kind="mesh", extents=(4, 3), wrap=(True, False))
    answer = topology_rings(mixed)
    assert answer.rings
    assert answer.verify().ranks == 12
