"""How many link-disjoint rings a network can have at most: what its degrees, sides and cuts allow."""

from __future__ import annotations

from collections.abc import Iterable

Arc = tuple[int, int]
_MOST_STEPS = 20_000_000
"""Looking for the smallest cut takes about ranks x links x degree steps; larger networks go without."""


def adjacency_of(arcs: Iterable[Arc], ranks: int) -> list[set[int]]:
    """Per rank, whom it reaches over one link."""
    adjacency: list[set[int]] = [set() for _ in range(ranks)]
    for a, b in arcs:
        adjacency[a].add(b)
    return adjacency


def degree_bound(arcs: Iterable[Arc], ranks: int) -> int:
    """The fewest links into or out of a rank: each ring needs one of each."""
    out, into = [0] * ranks, [0] * ranks
    for a, b in arcs:
        out[a] += 1
        into[b] += 1
    return min(*out, *into)


def ring_bound(adjacency: list[set[int]], arcs: frozenset[Arc]) -> tuple[int, str]:
    """How many rings there can be at most, and why."""
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
    """The fewest links that lead out of any set of ranks: each ring leaves every such set.

    By the largest flows from rank 0 to the others and back; networks too large for that answer with their
    degree.
    """
    ranks = len(adjacency)
    least = degree_bound(arcs, ranks)
    if ranks * len(arcs) * max(1, least) > _MOST_STEPS:
        return least
    back = adjacency_of(((b, a) for a, b in arcs), ranks)
    for other in range(1, ranks):
        for graph in (adjacency, back):
            least = min(least, _flow(graph, 0, other, least))
    return least


def _flow(graph: list[set[int]], start: int, stop: int, enough: int) -> int:
    """Paths from start to stop that share no link, counted up to ``enough``."""
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
