"""``hda/topology.py``: how the endpoints of one network are wired."""

import pytest
from hypothesis import given, strategies as st
from tests.hda.shared import every, graph_of, grid

from megatile.core.errors import RouteError
from megatile.hda.switched import Switched
from megatile.hda.topology import Topology


@every
def test_neighbours_are_symmetric_and_agree_with_links(topology: Topology) -> None:
    direct = not isinstance(topology, Switched)
    graph = graph_of(topology)
    for a in range(topology.size):
        near = list(topology.neighbors(a))
        assert a not in near
        assert len(set(near)) == len(near) == len(topology.neighbors(a))
        assert all(a in topology.neighbors(b) for b in near)
        assert all(topology.hop_count(a, b) == (1 if direct else 2) for b in near)
        reached = graph.successors(str(a))
        if direct:
            assert {str(b) for b in near} == set(reached)
        else:
            behind = {b for switch in reached for b in graph.successors(switch) if b.isdecimal()}
            assert {str(b) for b in near} == behind - {str(a)}


@every
def test_coordinates_and_index_are_inverse(topology: Topology) -> None:
    for a in range(topology.size):
        assert topology.index(topology.coords(a)) == a
    with pytest.raises(RouteError, match="outside the"):
        topology.index(topology.dims or (topology.size,))
    with pytest.raises(RouteError, match="outside"):
        topology.index((0,) * 9)


@given(st.data())
def test_any_grid_routes_shortest(data: st.DataObject) -> None:
    dims = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6)))
    wrap = tuple(data.draw(st.booleans()) for _ in dims)
    net = grid(dims, wrap)
    a, b = data.draw(st.integers(0, net.size - 1)), data.draw(st.integers(0, net.size - 1))
    expected = 0
    for place, other, extent, wraps in zip(net.coords(a), net.coords(b), dims, wrap, strict=True):
        straight = abs(place - other)
        expected += min(straight, extent - straight) if wraps else straight
    assert net.hop_count(a, b) == len(net.hops(a, b)) == expected
