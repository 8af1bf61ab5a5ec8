"""Rings on a graph of cables: Hamiltonian cycles that share no cable, as many as there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from megatile.core.cached import cached

MAX_CYCLES = 2000
"""Cycles of a graph that are looked at: a cube mesh of eight has 30."""
Cables = tuple[tuple[int, int, int], ...]
"""Pairs of ranks, and how many cables join them."""


@cached(most=64)
def rings_on_graph(ranks: int, cables: Cables) -> tuple[tuple[int, ...], ...]:
    """Return the rings, each in both directions; none where no cycle goes through all ranks.

    Every ring takes one cable between neighbours, as NCCL's search does.

    >>> rings_on_graph(3, ((0, 1, 2), (1, 2, 1), (0, 2, 1)))
    ((0, 1, 2), (0, 2, 1))
    """
    free = {frozenset(pair): count for *pair, count in cables}
    if ranks == 2:
        return ((0, 1),) * free.get(frozenset((0, 1)), 0)
    around = [sorted(b for b in range(ranks) if frozenset((a, b)) in free) for a in range(ranks)]
    every = list(islice(_cycles(ranks, around), MAX_CYCLES))
    links = sum(free.values())
    for count in range(links // max(ranks, 1), 0, -1):
        found = _disjoint(every, free, count)
        if found is not None:
            return tuple(way for ring in found for way in (ring, (ring[0], *ring[:0:-1])))
    return ()


def _cycles(ranks: int, around: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """Yield every Hamiltonian cycle from rank 0, in one of its directions."""
    path = [0]
    seen = {0}

    def on() -> Iterator[tuple[int, ...]]:
        if len(path) == ranks:
            if path[-1] in around[0] and path[1] < path[-1]:
                yield tuple(path)
            return
        for near in around[path[-1]]:
            if near not in seen:
                path.append(near)
                seen.add(near)
                yield from on()
                seen.remove(path.pop())

    return on()


def _disjoint(
    cycles: Sequence[tuple[int, ...]], free: dict[frozenset[int], int], count: int, first: int = 0
) -> list[tuple[int, ...]] | None:
    """Return ``count`` cycles, from the one numbered ``first`` on, that the free cables allow together."""
    if count == 0:
        return []
    for number in range(first, len(cycles)):
        ring = cycles[number]
        taken = [frozenset(pair) for pair in pairwise((*ring, ring[0]))]
        if all(free[link] > 0 for link in taken):
            for link in taken:
                free[link] -= 1
            rest = _disjoint(cycles, free, count - 1, number)
            for link in taken:
                free[link] += 1
            if rest is not None:
                return [ring, *rest]
    return None
