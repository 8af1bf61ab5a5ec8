"""Cycles and paths of complete graphs: every size, against the verifier and against an independent count."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from megatile.collectives.decompositions import (
    CycleFamily,
    DecompositionError,
    PathFamily,
    calculate_in_mapping_circle,
    calculate_inter_node_mapping,
    calculate_intra_node_in_mapping_two_nodes,
    calculate_intra_node_out_mapping_two_nodes,
    calculate_out_mapping_circle,
    calculate_source_rank_per_iter,
    cycles_from_mappings,
    doubled_cycles,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    partial_rings,
    ranks_per_node,
    verify_cycles,
    verify_two_nodes,
)


def arcs_of(routes, closed=True):
    return Counter(arc for r in routes for arc in pairwise([*r, r[0]] if closed else r))


@pytest.mark.parametrize("n", range(1, 131))
def test_every_ordered_pair_is_used_equally(n):
    cycles = gen_hamilton_circle(n)
    times = 2 if n in (4, 6) else 1
    assert len(cycles) == times * (n - 1)
    assert all(sorted(c) == list(range(n)) for c in cycles)
    assert arcs_of(cycles) == Counter({(a, b): times for a in range(n) for b in range(n) if a != b})
    cycles.verify()


@pytest.mark.parametrize("n", [198, 702, 1022, 1023, 1024])
def test_large_sizes_need_no_doubled_form(n):
    cycles = gen_hamilton_circle(n).verify()
    assert len(cycles) == n - 1


def test_doubled_form_of_any_even_size():
    for n in (2, 4, 6, 8, 30):
        cycles = doubled_cycles(n).verify()
        assert len(cycles) == 2 * (n - 1)
    with pytest.raises(DecompositionError, match="even numbers"):
        doubled_cycles(5)


@pytest.mark.parametrize("n", [0, -3, 2.5, True])
def test_sizes_that_are_none(n):
    with pytest.raises(DecompositionError, match="positive integer"):
        gen_hamilton_circle(n)


def test_the_verifier_sees_defects():
    good = gen_hamilton_circle(8)
    twice = CycleFamily([*good[:-1], good[0]], ranks=8)
    with pytest.raises(DecompositionError, match=r"is used [02] times"):
        twice.verify()
    with pytest.raises(DecompositionError, match="does not visit"):
        CycleFamily([[0, 1, 1]], ranks=3, complete=False).verify()
    with pytest.raises(DecompositionError):
        verify_cycles(good[:-1])
    with pytest.raises(DecompositionError, match="arc"):
        PathFamily([[0, 1, 2], [0, 2, 1], [1, 0, 2], [2, 0, 1]], ranks=3).verify()
    verify_cycles(good)


@pytest.mark.parametrize("n", range(2, 20))
def test_partial_rings_share_no_link(n):
    most = n - 2 if n in (4, 6) else n - 1
    for count in range(most + 1):
        rings = partial_rings(n, count).verify()
        assert len(rings) == count
        assert max(arcs_of(rings).values(), default=0) <= 1
    with pytest.raises(DecompositionError, match=f"at most {most}"):
        partial_rings(n, most + 1)


@pytest.mark.parametrize("m", range(1, 34))
def test_local_paths(m):
    paths = gen_hamilton_path_local(m).verify()
    times = 2 if m in (3, 5) else 1
    assert len(paths) == times * m
    assert arcs_of(paths, closed=False) == Counter(
        {(a, b): times for a in range(m) for b in range(m) if a != b}
    )


@pytest.mark.parametrize("u", [1, 2, 3, 4])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 5, 6, 7, 8, 12])
def test_node_cycles_and_their_mappings(m, u):
    cycles = gen_hamilton_circle_two_nodes(m * u, u).verify()
    verify_two_nodes(cycles)
    assert ranks_per_node(cycles) == m
    if u == 1:
        return
    back, inter = calculate_inter_node_mapping(cycles)
    per_rank = [[e] if isinstance(e, tuple) else e for e in inter]
    for rank, pairs in enumerate(per_rank):
        for peer, chunk in pairs:
            assert peer // m == (rank // m + 1) % u
            entry = back[peer]
            assert (rank, chunk) in ([entry] if isinstance(entry, tuple) else entry)
            assert cycles[chunk][cycles[chunk].index(rank) - m * u + 1] == peer
    out = calculate_intra_node_out_mapping_two_nodes(gen_hamilton_path_local(m))
    rebuilt = cycles_from_mappings(out, inter, m * u)
    assert rebuilt == [[*c[c.index(0) :], *c[: c.index(0)]] for c in cycles]
    into = calculate_intra_node_in_mapping_two_nodes(gen_hamilton_path_local(m))
    assert into == [list(column) for column in zip(*out, strict=True)]


def test_inter_node_mapping_example():
    incoming, outgoing = calculate_inter_node_mapping(gen_hamilton_circle_two_nodes(4))
    assert outgoing == [(3, 1), (2, 0), (1, 1), (0, 0)]
    assert incoming == [(3, 0), (2, 1), (1, 0), (0, 1)]


@pytest.mark.parametrize(("n", "nodes"), [(8, 1), (16, 2), (24, 3), (32, 4), (4, 2), (12, 2)])
def test_nodes_have_eight_ranks_unless_told_otherwise(n, nodes):
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


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 8, 9, 16])
def test_circle_mappings(n):
    cycles = gen_hamilton_circle(n)
    out, into = calculate_out_mapping_circle(cycles), calculate_in_mapping_circle(cycles)
    assert into == [list(column) for column in zip(*out, strict=True)]
    for i in range(n):
        assert out[i][i] == -1
        sent = [
            c for j in range(n) if j != i for c in (out[i][j] if isinstance(out[i][j], list) else [out[i][j]])
        ]
        assert sorted(sent) == list(range(len(cycles)))
    if cycles:
        assert cycles_from_mappings(out) == cycles


@pytest.mark.parametrize("n", [2, 3, 4, 8, 9])
def test_source_ranks_by_moving_chunks(n):
    cycles = gen_hamilton_circle(n)
    table = calculate_source_rank_per_iter(cycles)
    held = [[r] * len(cycles) for r in range(n)]
    for iteration in range(n):
        for r in range(n):
            assert table[r][iteration] == [source <= r for source in held[r]]
        moved = [list(row) for row in held]
        for c, cycle in enumerate(cycles):
            for a, b in pairwise([*cycle, cycle[0]]):
                moved[b][c] = held[a][c]
        held = moved


@pytest.mark.parametrize("bad", [[[0, 5, 1]], [[0, 1], [0]], [[0, 0, 1]]])
def test_cycles_that_miss_a_rank_are_refused(bad):
    for table in (calculate_out_mapping_circle, calculate_in_mapping_circle, calculate_source_rank_per_iter):
        with pytest.raises(DecompositionError, match=r"does not pass each of 0 to \d once"):
            table(bad)


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
