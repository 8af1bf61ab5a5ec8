"""Rings of a given network: Hamiltonian cycles over its own links that share none of them.

    >>> answer = torus_rings((4, 4))
    >>> len(answer.rings), answer.optimal
    (4, True)

Links are duplex, so every undirected cycle serves as two rings, one in each direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from megatile.collectives.decompositions.cycles import gen_hamilton_circle, partial_rings
from megatile.collectives.decompositions.families import DecompositionError, closed_arcs
from megatile.collectives.decompositions.search import disjoint_cycles
from megatile.collectives.decompositions.torus import torus_cycles

if TYPE_CHECKING:
    from megatile.hda.topology import Topology

Arc = tuple[int, int]


@dataclass(frozen=True)
class NetworkRings:
    """Directed rings over a network's arcs. ``optimal``: no larger set exists; ``reason``: why."""

    rings: tuple[tuple[int, ...], ...]
    arcs: frozenset[Arc]
    ranks: int
    optimal: bool
    reason: str

    def verify(self) -> NetworkRings:
        """Raise unless every ring visits every rank once over existing links and no arc serves twice."""
        used: set[Arc] = set()
        for ring in self.rings:
            if sorted(ring) != list(range(self.ranks)):
                raise DecompositionError(f"a ring does not visit each of the {self.ranks} ranks once: {ring}")
            for arc in closed_arcs(ring):
                if arc not in self.arcs:
                    raise DecompositionError(f"there is no link {arc[0]}→{arc[1]} in the network")
                if arc in used:
                    raise DecompositionError(f"link {arc[0]}→{arc[1]} serves two rings")
                used.add(arc)
        return self


def network_rings(
    edges: Iterable[Arc],
    *,
    ranks: int | None = None,
    directed: bool = False,
    count: int | None = None,
    budget: int = 200_000,
) -> NetworkRings:
    """Link-disjoint rings of the network given by its links, found by a search of at most ``budget`` steps.

    Links are duplex unless ``directed``. ``count`` limits the number of rings asked for (directed ones).
    """
    arcs = frozenset((int(a), int(b)) for a, b in edges if a != b)
    arcs = arcs if directed else arcs | {(b, a) for a, b in arcs}
    n = ranks if ranks is not None else 1 + max((max(arc) for arc in arcs), default=0)
    if any(not 0 <= v < n for arc in arcs for v in arc):
        raise DecompositionError(f"a link names a rank outside 0..{n - 1}")
    adjacency: list[set[int]] = [set() for _ in range(n)]
    for a, b in arcs:
        adjacency[a].add(b)
    if len(arcs) == n * (n - 1) and n > 1:
        return _trimmed(full_mesh_rings(n), count)
    bound, why = _bound(adjacency, arcs, directed)
    wanted = bound if count is None else min(bound, count)
    rings, proven = _searched(adjacency, wanted, directed, budget)
    optimal = len(rings) == bound or proven
    reason = why if len(rings) == bound else _search_reason(proven, budget)
    return _trimmed(NetworkRings(_frozen(rings), arcs, n, optimal, reason), count)


def _searched(
    adjacency: list[set[int]], wanted: int, directed: bool, budget: int
) -> tuple[list[list[int]], bool]:
    """Rings, and whether it is proven that there are no more.

    With duplex links, cycles that serve both ways are quick to find; there may be more rings than those.
    """
    if directed:
        found = disjoint_cycles(adjacency, wanted, directed=True, budget=budget)
        return found.cycles, found.exhausted
    pairs = disjoint_cycles(adjacency, (wanted + 1) // 2, directed=False, budget=budget)
    rings = _both_ways(pairs.cycles)
    if len(rings) >= wanted or (not rings and pairs.exhausted):
        return rings, pairs.exhausted
    more = disjoint_cycles(adjacency, wanted, directed=True, budget=budget - pairs.steps)
    return (more.cycles if len(more.cycles) > len(rings) else rings), more.exhausted


def full_mesh_rings(n: int) -> NetworkRings:
    """All rings of n ranks linked pairwise: n-1 (n-2 for n = 4 and 6, where n-1 do not exist)."""
    arcs = frozenset((a, b) for a in range(n) for b in range(n) if a != b)
    family = gen_hamilton_circle(n)
    if family.multiplicity == 1:
        return NetworkRings(_frozen(family), arcs, n, True, "every link is used")
    rings = partial_rings(n, n - 2 if n in (4, 6) else 0)
    reason = (
        f"K*_{n} has no decomposition into {n - 1} cycles" if n in (4, 6) else "no construction is known here"
    )
    return NetworkRings(_frozen(rings), arcs, n, n in (4, 6), reason)


def torus_rings(dims: Sequence[int], *, budget: int = 200_000) -> NetworkRings:
    """Rings of a torus (last dimension fastest): two per dimension of length 3 or more."""
    sizes = [d for d in dims if d > 1]
    arcs = _grid_arcs(dims, wrap=True)
    if sizes and min(sizes) >= 3:
        cycles = torus_cycles(sizes)
        if cycles is not None:
            return NetworkRings(_frozen(_both_ways(cycles)), arcs, prod(dims), True, "every link is used")
    return network_rings(arcs, ranks=prod(dims), budget=budget)


def mesh_rings(dims: Sequence[int], *, budget: int = 200_000) -> NetworkRings:
    """Rings of a mesh without wrap: in 2 and 3 dimensions corners allow one cycle, both ways."""
    sizes = [d for d in dims if d > 1]
    arcs = _grid_arcs(dims, wrap=False)
    if len(sizes) in (2, 3) and prod(sizes) % 2 == 0:
        snake = _snake(sizes[1:])
        cycle = [
            v // len(snake) * len(snake) + snake[v % len(snake)] for v in _grid_cycle(sizes[0], len(snake))
        ]
        reason = f"a corner has only {len(sizes)} links"
        return NetworkRings(_frozen(_both_ways([cycle])), arcs, prod(dims), True, reason)
    return network_rings(arcs, ranks=prod(dims), budget=budget)


def topology_rings(topology: Topology, *, budget: int = 200_000) -> NetworkRings:
    """Rings of one network of a machine: ``topology_rings(hda.networks[0].topology)``.

    Endpoints behind one switch count as linked pairwise. Grids (whose first dimension is the fastest) are
    answered by construction, other networks by search.
    """
    arcs = frozenset((a, b) for a in range(topology.size) for b in topology.neighbors(a))
    wraps = [
        wrap for wrap, size in zip(getattr(topology, "wrap", ()), topology.dims, strict=False) if size > 2
    ]
    sizes = topology.dims[::-1]
    if isinstance(getattr(topology, "wrap", None), tuple) and len(set(wraps)) <= 1:
        answer = torus_rings(sizes, budget=budget) if all(wraps) else mesh_rings(sizes, budget=budget)
    else:
        answer = network_rings(arcs, ranks=topology.size, budget=budget)
    return replace(answer, arcs=arcs).verify()


def _bound(adjacency: list[set[int]], arcs: frozenset[Arc], directed: bool) -> tuple[int, str]:
    n = len(adjacency)
    if n < 3 and not (directed and n == 2):
        return 0, "a ring needs three ranks"
    incoming = [0] * n
    for _, b in arcs:
        incoming[b] += 1
    least = min(min(len(near) for near in adjacency), min(incoming))
    sides = _two_sides(adjacency)
    if sides is not None and sides[0] != sides[1]:
        return (
            0,
            f"the network is bipartite with sides of {sides[0]} and {sides[1]}, so no cycle visits all ranks",
        )
    return least, f"a rank has only {least} link{'s' * (least != 1)}"


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


def _grid_arcs(dims: Sequence[int], *, wrap: bool) -> frozenset[Arc]:
    if not dims or any(d < 1 for d in dims):
        raise DecompositionError(f"dimensions must be positive, got {tuple(dims)}")
    arcs: set[Arc] = set()
    for at in product(*map(range, dims)):
        for d, size in enumerate(dims):
            if at[d] + 1 < size or (wrap and size > 2):
                there = (*at[:d], (at[d] + 1) % size, *at[d + 1 :])
                a, b = _rank(at, dims), _rank(there, dims)
                arcs |= {(a, b), (b, a)}
    return frozenset(arcs)


def _rank(at: Sequence[int], dims: Sequence[int]) -> int:
    rank = 0
    for x, size in zip(at, dims, strict=True):
        rank = rank * size + x
    return rank


def _grid_cycle(rows: int, columns: int) -> list[int]:
    """Down the first column of an even number of rows, snaking through the others."""
    if rows % 2:
        return [(v % rows) * columns + v // rows for v in _grid_cycle(columns, rows)]
    snake = [
        r * columns + c
        for r in range(rows)
        for c in (range(1, columns) if r % 2 == 0 else range(columns - 1, 0, -1))
    ]
    return [*snake, *(r * columns for r in range(rows - 1, -1, -1))]


def _snake(sizes: Sequence[int]) -> list[int]:
    """A Hamiltonian path of a grid: rows there and back."""
    path = [0]
    for size in sizes:
        path = [
            v * size + c
            for k, v in enumerate(path)
            for c in (range(size) if k % 2 == 0 else range(size)[::-1])
        ]
    return path


def _both_ways(cycles: Iterable[Sequence[int]]) -> list[list[int]]:
    return [way for cycle in cycles for way in (list(cycle), list(cycle)[::-1])]


def _frozen(cycles: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(cycle) for cycle in cycles)


def _trimmed(answer: NetworkRings, count: int | None) -> NetworkRings:
    if count is None or count >= len(answer.rings):
        return answer
    return NetworkRings(
        answer.rings[:count], answer.arcs, answer.ranks, True, f"{count} rings were asked for"
    )


def _search_reason(exhausted: bool, budget: int) -> str:
    if exhausted:
        return "the search was exhaustive: no larger set exists"
    return f"the search stopped after {budget} steps; a larger set may exist"
