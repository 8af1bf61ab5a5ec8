"""``collectives/decompositions/mappings.py``: routing tables that follow from cycles."""

from __future__ import annotations

from itertools import pairwise

import pytest

from megatile.collectives.decompositions import (
    DecompositionError,
    calculate_in_mapping_circle,
    calculate_inter_node_mapping,
    calculate_intra_node_in_mapping_two_nodes,
    calculate_intra_node_out_mapping_two_nodes,
    calculate_out_mapping_circle,
    calculate_source_rank_per_iter,
    cycles_from_mappings,
    gen_hamilton_circle,
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    ranks_per_node,
    verify_two_nodes,
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
