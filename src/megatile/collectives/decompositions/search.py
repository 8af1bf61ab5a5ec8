"""Hamiltonian cycles that share no link, for graphs without a known construction: a bounded search, and how
many there can be at most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from megatile.collectives.decompositions.families import closed_arcs

Adjacency = list[set[int]]
Arc = tuple[int, int]
_MAX_STEPS = 20_000_000
"""Looking for the smallest cut takes about ranks x links x degree steps; larger networks go without."""


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
    """Return up to ``count`` Hamiltonian cycles without a common link (arc, if ``directed``).

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
    """Yield all Hamiltonian cycles through vertex 0, by depth-first search without recursion."""
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
    """Return the neighbours still free, the most constrained last (they are taken from the end)."""
    free = graph[v] - used
    return sorted(free, key=lambda w: (-len(graph[w] - used), -w))


# --- how many link-disjoint rings there can be at most: what degrees, sides and cuts allow ---


def adjacency_of(arcs: Iterable[Arc], ranks: int) -> list[set[int]]:
    """Per rank, whom it reaches over one link."""
    adjacency: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in arcs:
        adjacency[a].add(b)
    return adjacency


def degree_bound(arcs: Iterable[Arc], ranks: int) -> int:
    """Return the fewest links into or out of a rank: each ring needs one of each."""
    out, into = [0] * ranks, [0] * ranks
    for a, b in arcs:
        out[a] += 1
        into[b] += 1
    return min(*out, *into)


def ring_bound(adjacency: list[set[int]], arcs: frozenset[Arc]) -> tuple[int, str]:
    """Return how many rings there can be at most, and why."""
    if len(adjacency) < 2:
        return 0, "a ring needs two ranks"
    sides = _two_sides(adjacency)
    if sides is not None and sides[0] != sides[1]:
        return (
            0,
            f"the network is bipartite with sides of {sides[0]} and {sides[1]}, so no cycle visits all ranks",
        )
    least = degree_bound(arcs, len(adjacency))
    return least, f"a rank has only {least} link{'s' * (least != 1)}"


def cut_bound(adjacency: list[set[int]], arcs: frozenset[Arc]) -> int:
    """Return the fewest links that lead out of any set of ranks: each ring leaves every such set.

    By the largest flows from rank 0 to the others and back; networks too large for that answer with their
    degree.
    """
    ranks = len(adjacency)
    least = degree_bound(arcs, ranks)
    if ranks * len(arcs) * max(1, least) > _MAX_STEPS:
        return least
    back = adjacency_of(((b, a) for a, b in arcs), ranks)
    for other in range(1, ranks):
        for graph in (adjacency, back):
            least = min(least, _flow(graph, 0, other, least))
    return least


def _flow(graph: list[set[int]], start: int, stop: int, enough: int) -> int:
    """Return paths from start to stop that share no link, counted up to ``enough``."""
    left = [set(near) for near in graph]
    for count in range(enough):
        came: dict[int, int] = {start: start}
        line = [start]
        for v in line:
            for w in left[v]:
                if w not in came:
                    came[w] = v
                    line.append(w)
            if stop in came:
                break
        if stop not in came:
            return count
        at = stop
        while at != start:
            before = came[at]
            left[before].discard(at)
            left[at].add(before)
            at = before
    return enough


def _two_sides(adjacency: list[set[int]]) -> tuple[int, int] | None:
    side: dict[int, int] = {}
    for start in range(len(adjacency)):
        stack = [start] if start not in side else []
        side.setdefault(start, 0)
        while stack:
            v = stack.pop()
            for w in adjacency[v]:
                if w not in side:
                    side[w] = 1 - side[v]
                    stack.append(w)
                elif side[w] == side[v]:
                    return None
    ones = sum(side.values())
    return len(side) - ones, ones
