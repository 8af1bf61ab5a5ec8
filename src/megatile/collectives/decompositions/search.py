"""A bounded search for Hamiltonian cycles that share no link, for graphs without a known construction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from megatile.collectives.decompositions.families import closed_arcs

Adjacency = list[set[int]]


class SearchResult(NamedTuple):
    """The most cycles found; whether the search has shown that there are no more; how many steps it took."""

    cycles: list[list[int]]
    exhausted: bool
    steps: int


class _OutOfBudget(Exception):
    pass


class _Budget:
    def __init__(self, steps: int):
        self.steps = self.left = steps

    def spend(self) -> None:
        if self.left <= 0:
            raise _OutOfBudget
        self.left -= 1


def disjoint_cycles(
    adjacency: Sequence[set[int]], count: int, *, directed: bool, budget: int
) -> SearchResult:
    """Up to ``count`` Hamiltonian cycles without a common link (arc, if ``directed``).

    ``adjacency[v]`` are the vertices reachable from v. At most ``budget`` vertices are tried; neighbours with
    the fewest remaining ways on come first.
    """
    purse = _Budget(budget)
    best: list[list[int]] = []

    def extend(graph: Adjacency, found: list[list[int]]) -> bool:
        nonlocal best
        if len(found) > len(best):
            best = list(found)
        if len(found) == count:
            return True
        return any(
            extend(_without(graph, cycle, directed), [*found, cycle]) for cycle in _cycles(graph, purse)
        )

    try:
        extend([set(near) for near in adjacency], [])
    except _OutOfBudget:
        return SearchResult(best, False, budget)
    return SearchResult(best, len(best) < count, budget - purse.left)


def _without(graph: Adjacency, cycle: list[int], directed: bool) -> Adjacency:
    remaining = [set(near) for near in graph]
    for a, b in closed_arcs(cycle):
        remaining[a].discard(b)
        if not directed:
            remaining[b].discard(a)
    return remaining


def _cycles(graph: Adjacency, purse: _Budget) -> Iterator[list[int]]:
    """All Hamiltonian cycles through vertex 0, by depth-first search without recursion."""
    n = len(graph)
    if n == 1 or any(not near for near in graph):
        return
    path, used = [0], {0}
    choices = [_ordered(graph, 0, used)]
    while choices:
        if not choices[-1]:
            choices.pop()
            used.discard(path.pop())
            continue
        v = choices[-1].pop()
        purse.spend()
        path.append(v)
        used.add(v)
        if len(path) == n and 0 in graph[v] and n > 2:
            yield list(path)
        choices.append(_ordered(graph, v, used))


def _ordered(graph: Adjacency, v: int, used: set[int]) -> list[int]:
    """The neighbours still free, the most constrained last (they are taken from the end)."""
    free = graph[v] - used
    return sorted(free, key=lambda w: (-len(graph[w] - used), -w))
