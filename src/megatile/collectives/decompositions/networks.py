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
from megatile.collectives.decompositions.search import (
    Arc,
    SearchResult,
    adjacency_of,
    cut_bound,
    degree_bound,
    disjoint_cycles,
    ring_bound,
)
from megatile.collectives.decompositions.torus import torus_cycles

if TYPE_CHECKING:
    from megatile.hda.topology import Topology


@dataclass(frozen=True)
class NetworkRings:
    """Directed rings over a network's arcs; no set has more than ``bound`` of them, for the ``reason``."""

    rings: tuple[tuple[int, ...], ...]
    arcs: frozenset[Arc]
    ranks: int
    bound: int
    reason: str

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no larger set exists."""
        return len(self.rings) == self.bound

    def __str__(self) -> str:
        found = f"{len(self.rings)} ring{'s' * (len(self.rings) != 1)}"
        most = "the maximum" if self.optimal else f"at most {self.bound} exist"
        return f"{found} over {self.ranks} ranks, {most}: {self.reason}"

    def verify(self) -> NetworkRings:
        """Raise unless every ring visits every rank once over existing links and no arc serves twice.

        The bound may not be below the rings, nor above what the links of any rank allow.
        """
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
        if not len(self.rings) <= self.bound <= max(len(self.rings), degree_bound(self.arcs, self.ranks)):
            raise DecompositionError(f"{len(self.rings)} rings are said to be at most {self.bound}")
        return self


def network_rings(
    edges: Iterable[Arc],
    *,
    ranks: int | None = None,
    directed: bool = False,
    count: int | None = None,
    budget: int = 200_000,
) -> NetworkRings:
    """Return link-disjoint rings of the network given by its links, found by a search of at most ``budget``
    steps.

    Links are duplex unless ``directed``. ``count`` limits the number of rings asked for (directed ones).
    """
    arcs = frozenset((int(a), int(b)) for a, b in edges if a != b)
    arcs = arcs if directed else arcs | {(b, a) for a, b in arcs}
    n = ranks if ranks is not None else 1 + max((max(arc) for arc in arcs), default=0)
    if any(not 0 <= v < n for arc in arcs for v in arc):
        raise DecompositionError(f"a link names a rank outside 0..{n - 1}")
    adjacency = adjacency_of(arcs, n)
    if len(arcs) == n * (n - 1) and n > 1:
        return _trimmed(full_mesh_rings(n), count)
    bound, why = ring_bound(adjacency, arcs)
    wanted = bound if count is None else min(bound, count)
    return _trimmed(_best(adjacency, arcs, _searched(adjacency, wanted, directed, budget), bound, why), count)


def _best(
    adjacency: list[set[int]], arcs: frozenset[Arc], found: SearchResult, bound: int, why: str
) -> NetworkRings:
    rings = _frozen(found.cycles)
    if len(rings) < bound and found.exhausted:
        bound, why = len(rings), "the search was exhaustive: no larger set exists"
    elif len(rings) < bound:
        cut = cut_bound(adjacency, arcs)
        bound, why = (cut, f"a cut has only {cut} links") if cut < bound else (bound, why)
        if len(rings) < bound:
            why = f"the search stopped after {found.steps} steps; {why}"
    return NetworkRings(rings, arcs, len(adjacency), bound, why)


def _searched(adjacency: list[set[int]], wanted: int, directed: bool, budget: int) -> SearchResult:
    """With duplex links, cycles that serve both ways are quick to find; there may be more rings than that."""
    if directed:
        return disjoint_cycles(adjacency, wanted, directed=True, budget=budget)
    pairs = disjoint_cycles(adjacency, (wanted + 1) // 2, directed=False, budget=budget)
    rings = _both_ways(pairs.cycles)
    if len(rings) >= wanted or (not rings and pairs.exhausted):
        return pairs._replace(cycles=rings)
    more = disjoint_cycles(adjacency, wanted, directed=True, budget=budget - pairs.steps)
    best = more.cycles if len(more.cycles) > len(rings) else rings
    return SearchResult(best, more.exhausted, pairs.steps + more.steps)


def full_mesh_rings(n: int) -> NetworkRings:
    """Return all rings of n ranks linked pairwise: n-1 (n-2 for n = 4 and 6, where n-1 do not exist)."""
    arcs = frozenset((a, b) for a in range(n) for b in range(n) if a != b)
    family = gen_hamilton_circle(n)
    if family.multiplicity == 1:
        return NetworkRings(_frozen(family), arcs, n, n - 1, "every link is used")
    rings = _frozen(partial_rings(n, n - 2))
    if n in (4, 6):
        return NetworkRings(rings, arcs, n, n - 2, f"K*_{n} has no decomposition into {n - 1} cycles")
    return NetworkRings(rings, arcs, n, n - 1, "no construction for all links is known here")


def torus_rings(dims: Sequence[int], *, budget: int = 200_000) -> NetworkRings:
    """Return rings of a torus (last dimension fastest): two per dimension of length 3 or more."""
    sizes = [d for d in dims if d > 1]
    arcs = _grid_arcs(dims, wrap=True)
    if sizes and min(sizes) >= 3:
        cycles = torus_cycles(sizes)
        if cycles is not None:
            rings = _frozen(_both_ways(cycles))
            return NetworkRings(rings, arcs, prod(dims), len(rings), "every link is used")
    return network_rings(arcs, ranks=prod(dims), budget=budget)


def mesh_rings(dims: Sequence[int], *, budget: int = 200_000) -> NetworkRings:
    """Return rings of a mesh without wrap.

    Corners allow two in two dimensions: one cycle, both ways. In more dimensions they allow more; what
    a search of at most ``budget`` steps does not find stays open (``bound``).
    """
    sizes = [d for d in dims if d > 1]
    arcs = _grid_arcs(dims, wrap=False)
    if len(sizes) < 2 or prod(sizes) % 2:
        return network_rings(arcs, ranks=prod(dims), budget=budget)
    snake = _snake(sizes[1:])
    cycle = [v // len(snake) * len(snake) + snake[v % len(snake)] for v in _grid_cycle(sizes[0], len(snake))]
    built = _both_ways([cycle])
    adjacency = adjacency_of(arcs, prod(dims))
    bound, why = ring_bound(adjacency, arcs)
    if bound == len(built):
        return NetworkRings(_frozen(built), arcs, prod(dims), bound, why)
    found = _searched(adjacency, bound, False, budget)
    better = found if len(found.cycles) > len(built) else found._replace(cycles=built)
    return _best(adjacency, arcs, better, bound, why)


def topology_rings(topology: Topology, *, budget: int = 200_000) -> NetworkRings:
    """Return rings of one network of a machine: ``topology_rings(hda.networks[0].topology)``.

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
    """Return a Hamiltonian path of a grid: rows there and back."""
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
    if count is None or count > len(answer.rings) or answer.bound <= count:
        return answer
    return replace(answer, rings=answer.rings[:count], reason=f"{count} rings were asked for")
