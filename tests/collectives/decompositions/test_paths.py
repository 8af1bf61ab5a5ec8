"""``collectives/decompositions/paths.py``: hamiltonian paths inside a node, closed through the NICs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st
from tests.collectives.decompositions.shared import arcs_of

from megatile.collectives.decompositions import (
    DecompositionError,
    calculate_inter_node_mapping,
    cycles_from_mappings,
    doubled_cycles,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    ranks_per_node,
)


@pytest.mark.parametrize("m", range(1, 34))
def test_local_paths(m):
    paths = gen_hamilton_path_local(m).verify()
    times = 2 if m in (3, 5) else 1
    assert len(paths) == times * m
    assert arcs_of(paths, closed=False) == Counter(
        {(a, b): times for a in range(m) for b in range(m) if a != b}
    )


def test_inter_node_mapping_example():
    incoming, outgoing = calculate_inter_node_mapping(gen_hamilton_circle_two_nodes(4))
    assert outgoing == [(3, 1), (2, 0), (1, 1), (0, 0)]
    assert incoming == [(3, 0), (2, 1), (1, 0), (0, 1)]


@pytest.mark.parametrize(("n", "nodes"), [(8, 1), (16, 2), (24, 3), (32, 4), (4, 2), (12, 2)])
def test_nodes_have_eight_ranks_by_default(n, nodes):
    cycles = gen_hamilton_circle_two_nodes(n)
    assert cycles == gen_hamilton_circle_two_nodes(n, nodes)
    assert cycles.ranks_per_node == n // nodes


def test_ranks_that_nodes_do_not_divide():
    with pytest.raises(DecompositionError, match="cannot be divided"):
        gen_hamilton_circle_two_nodes(7)
    with pytest.raises(DecompositionError, match="whole nodes"):
        ranks_per_node([[0, 2, 1, 3]] * 2)
    with pytest.raises(DecompositionError, match="not a cycle"):
        cycles_from_mappings([[-1, 0, 0], [0, -1, 0], [0, 0, -1]])


FAMILIES = st.one_of(
    st.integers(3, 40).map(gen_hamilton_circle),
    st.integers(2, 20).map(lambda half: doubled_cycles(2 * half)),
    st.integers(2, 24).map(gen_hamilton_path_local),
    st.tuples(st.integers(2, 9), st.integers(2, 5)).map(
        lambda size: gen_hamilton_circle_two_nodes(size[0] * size[1], size[1])
    ),
)


@settings(deadline=None)
@given(FAMILIES, st.data())
def test_a_changed_family_is_refused(family, data):
    """Two stops exchanged, a stop repeated, a route left out, doubled or turned around."""
    family.verify()
    route = data.draw(st.sampled_from(family))
    i, j = data.draw(st.lists(st.integers(0, len(route) - 1), min_size=2, max_size=2, unique=True))
    change = data.draw(st.sampled_from(["exchange", "repeat", "leave out", "double", "turn"]))
    if change == "exchange":
        route[i], route[j] = route[j], route[i]
    elif change == "repeat":
        route[i] = route[j]
    elif change == "leave out":
        family.remove(route)
    elif change == "double":
        family.append(list(route))
    else:
        route.reverse()
    with pytest.raises(DecompositionError):
        family.verify()
