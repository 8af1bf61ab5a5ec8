"""Routing tables that follow from cycles: which chunk goes to whom, and whose chunk has arrived."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from megatile.collectives.decompositions.families import DecompositionError, closed_arcs
from megatile.collectives.decompositions.paths import ranks_per_node
from megatile.core.arguments import no_none

Chunk = int | list[int]  # the doubled form sends two chunks over one link
NodePairs = list[tuple[int, int]] | list[list[tuple[int, int]]]


@no_none
def calculate_out_mapping_circle(looping: Sequence[Sequence[int]]) -> list[list[Chunk]]:
    """``out[i][j]`` is the chunk that rank i sends to rank j in every exchange.

    -1 on the diagonal (and where partial rings use no link); a list of two chunks in the doubled form.
    """
    ranks = _ranks(looping)
    arcs = ((c, a, b) for c, cycle in enumerate(looping) for a, b in closed_arcs(cycle))
    return _table(arcs, ranks)


@no_none
def calculate_in_mapping_circle(looping: Sequence[Sequence[int]]) -> list[list[Chunk]]:
    """``in[i][j]`` is the chunk slot that rank i fills from rank j: the transpose of the out mapping."""
    return _transposed(calculate_out_mapping_circle(looping))


@no_none
def calculate_intra_node_out_mapping_two_nodes(path0: Sequence[Sequence[int]]) -> list[list[Chunk]]:
    """``out[i][j]`` for the local ranks of a node, from the paths of one node; the same on every node."""
    ranks = _ranks(path0)
    arcs = ((c, a, b) for c, path in enumerate(path0) for a, b in pairwise(path))
    return _table(arcs, ranks)


@no_none
def calculate_intra_node_in_mapping_two_nodes(path0: Sequence[Sequence[int]]) -> list[list[Chunk]]:
    """``in[i][j]`` for the local ranks of a node: the transpose of the out mapping."""
    return _transposed(calculate_intra_node_out_mapping_two_nodes(path0))


@no_none
def calculate_inter_node_mapping(
    looping: Sequence[Sequence[int]], m: int | None = None
) -> tuple[NodePairs, NodePairs]:
    """Return what crosses nodes, from the end of path c to its next start, per rank: ``(in, out)``.

    ``in`` has (sender, chunk), ``out`` (receiver, chunk). In the doubled form every rank has a list of two
    such pairs. ``m``, the ranks of a node, is found from the cycles when not given.
    """
    n = _ranks(looping)
    m = m or ranks_per_node([list(cycle) for cycle in looping])
    incoming: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    outgoing: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for c, cycle in enumerate(looping):
        for k in range(m - 1, n, m):
            sender, receiver = cycle[k], cycle[(k + 1) % n]
            outgoing[sender].append((receiver, c))
            incoming[receiver].append((sender, c))
    if all(len(pairs) == 1 for pairs in outgoing):
        return [pairs[0] for pairs in incoming], [pairs[0] for pairs in outgoing]
    return incoming, outgoing


@no_none
def calculate_source_rank_per_iter(looping: Sequence[Sequence[int]]) -> list[list[list[bool]]]:
    """``[rank][iteration][chunk]``: whether the chunk held then began at no higher rank."""
    sources = source_ranks(looping)
    ranks = np.arange(sources.shape[0])[:, None, None]
    result: list[list[list[bool]]] = (sources <= ranks).tolist()
    return result


def source_ranks(looping: Sequence[Sequence[int]]) -> np.ndarray:
    """``[rank, iteration, chunk]``: where the chunk held then began."""
    n = _ranks(looping)
    sources = np.zeros((n, n, len(looping)), dtype=np.int64)
    steps = np.arange(n)
    for c, cycle in enumerate(looping):
        stops = np.asarray(cycle)
        position = np.empty(n, dtype=np.int64)
        position[stops] = steps
        sources[:, :, c] = stops[(position[:, None] - steps[None, :]) % n]
    return sources


def cycles_from_mappings(
    out_mapping: Sequence[Sequence[Chunk]],
    inter_out: Sequence[object] | None = None,
    ranks: int | None = None,
) -> list[list[int]]:
    """Return the cycles behind routing tables: the inverse of the functions above.

    With ``inter_out`` (see :func:`calculate_inter_node_mapping`) ``out_mapping`` is the table of one node.
    """
    m = len(out_mapping)
    n = ranks or m
    following: dict[int, dict[int, int]] = {}
    for node in range(n // m):
        for i, j, chunk in _entries(out_mapping):
            following.setdefault(chunk, {})[i + node * m] = j + node * m
    for rank, pairs in enumerate(inter_out or []):
        for peer, chunk in _pairs(pairs):
            following.setdefault(chunk, {})[rank] = peer
    return [_follow(following.get(c, {}), n, c) for c in range(max(following, default=-1) + 1)]


def _follow(following: dict[int, int], n: int, chunk: int) -> list[int]:
    cycle = [0]
    while (rank := following.get(cycle[-1], 0)) != 0 and len(cycle) < n:
        cycle.append(rank)
    if len(cycle) != n or following.get(cycle[-1]) != 0:
        raise DecompositionError(
            f"the mapping sends chunk {chunk} along {cycle}, which is not a cycle of {n} ranks"
        )
    return cycle


def _entries(table: Sequence[Sequence[Chunk]]) -> Iterable[tuple[int, int, int]]:
    for i, row in enumerate(table):
        for j, entry in enumerate(row):
            for chunk in entry if isinstance(entry, (list, tuple)) else [entry]:
                if chunk >= 0:
                    yield i, j, chunk


def _pairs(entry: object) -> list[tuple[int, int]]:
    if isinstance(entry, tuple):
        return [(int(entry[0]), int(entry[1]))]
    if isinstance(entry, list):
        return [pair for part in entry for pair in _pairs(part)]
    raise DecompositionError(f"an inter-node mapping has (peer, chunk) per rank, got {entry!r}")


def _table(arcs: Iterable[tuple[int, int, int]], ranks: int) -> list[list[Chunk]]:
    found: dict[tuple[int, int], list[int]] = {}
    for chunk, a, b in arcs:
        found.setdefault((a, b), []).append(chunk)

    def entry(a: int, b: int) -> Chunk:
        chunks = found.get((a, b), [])
        return -1 if not chunks else chunks[0] if len(chunks) == 1 else chunks

    return [[entry(a, b) for b in range(ranks)] for a in range(ranks)]


def _transposed(table: list[list[Chunk]]) -> list[list[Chunk]]:
    return [list(column) for column in zip(*table, strict=True)]


def _ranks(looping: Sequence[Sequence[int]]) -> int:
    """Return how many ranks the cycles or paths pass, each of them once."""
    n = len(looping[0]) if looping else 1
    for number, cycle in enumerate(looping):
        if sorted(cycle) != list(range(n)):
            raise DecompositionError(
                f"cycle {number}, {list(cycle)}, does not pass each of 0 to {n - 1} once",
                advice="take the cycles of gen_hamilton_circle or of your network",
            )
    return n
