"""Networks whose endpoints are wired to each other: grids, full meshes, trees, edge lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product

from megatile.core.cached import cached_in_owner
from megatile.core.errors import RouteError
from megatile.hda.topology import Others, Run, Topology

AXES = "xyzw"


@dataclass(frozen=True)
class Grid(Topology):
    """Line, ring, mesh and torus of any dimension. Dimension-ordered routes, shorter way round, ties forward.

    A wrap-around over two endpoints is the same cable as the direct link, so extents below three do not wrap.
    """

    extents: tuple[int, ...] = ()
    wrap: tuple[bool, ...] = ()

    _axes: tuple[tuple[str, int, int, bool], ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wraps = tuple(w and d > 2 for w, d in zip(self.wrap, self.extents, strict=True))
        strides = tuple(math.prod(self.extents[:i]) for i in range(len(self.extents)))
        self._set(wrap=wraps, dims=self.extents, link_count=self.size * 2 * len(self.extents))
        names = [AXES[i] if i < len(AXES) else f"d{i}" for i in range(len(self.extents))]
        self._set(_axes=tuple(zip(names, self.extents, strides, wraps, strict=True)))

    def route(self, a: int, b: int) -> tuple[Run, ...]:
        runs = []
        here = a
        for name, extent, stride, wrap in self._axes:
            delta = b // stride % extent - here // stride % extent
            if not delta:
                continue
            to = here + delta * stride
            if wrap and 2 * abs(delta) > extent:
                delta -= extent if delta > 0 else -extent
            elif wrap and 2 * -delta == extent:
                delta = -delta
            runs.append(Run(name, here, 1 if delta > 0 else -1, abs(delta)))
            here = to
        return tuple(runs)

    def links(self, run: Run) -> Iterator[int]:
        axis = AXES.index(run.axis) if run.axis in AXES else int(run.axis[1:])
        _, extent, stride, _ = self._axes[axis]
        place = run.start // stride % extent
        base = run.start - place * stride
        side = 2 * axis + (0 if run.step > 0 else 1)
        for _ in range(run.hops):
            yield (base + place * stride) * 2 * len(self.extents) + side
            place = (place + run.step) % extent

    def step(self, a: int, axis: int, step: int) -> int | None:
        """Return the endpoint next to ``a``, or None at an edge."""
        _, extent, stride, wrap = self._axes[axis]
        place = a // stride % extent
        to = place + step
        if not 0 <= to < extent:
            if not wrap:
                return None
            to %= extent
        return a + (to - place) * stride

    def neighbors(self, a: int) -> Sequence[int]:
        found = [self.step(a, axis, step) for axis in range(len(self.extents)) for step in (1, -1)]
        return list(dict.fromkeys(n for n in found if n is not None))

    def ends(self, link: int) -> tuple[str, str]:
        node, side = divmod(link, 2 * len(self.extents))
        to = self.step(node, side // 2, -1 if side % 2 else 1)
        return str(node), str(to)

    def bisection_links(self) -> float:
        return _halved([(e, w) for e, w in zip(self.extents, self.wrap, strict=True) if e > 1])


def _halved(axes: list[tuple[int, bool]]) -> int:
    """Return links cut to halve a grid: across one axis; an odd extent leaves a middle slab, halved in its
    turn."""
    if not axes:
        return 0
    size = math.prod(extent for extent, _ in axes)
    cuts = sorted(
        (size // extent * (2 if wrap else 1), extent % 2, i) for i, (extent, wrap) in enumerate(axes)
    )
    best, odd, axis = cuts[0]
    if odd:
        best += _halved(axes[:axis] + axes[axis + 1 :])
    return min([best, *(cut for cut, odd, _ in cuts if not odd)])


@dataclass(frozen=True)
class FullMesh(Topology):
    """A link from every endpoint to every other."""

    def __post_init__(self) -> None:
        self._set(link_count=self.size * (self.size - 1), dims=(self.size,))

    def route(self, a: int, b: int) -> tuple[Run, ...]:
        return (Run("direct", a, b, 1),) if a != b else ()

    def links(self, run: Run) -> Iterator[int]:
        yield run.start * (self.size - 1) + run.step - (run.step > run.start)

    def neighbors(self, a: int) -> Sequence[int]:
        return Others(range(self.size), a)

    def ends(self, link: int) -> tuple[str, str]:
        a, b = divmod(link, self.size - 1)
        return str(a), str(b + (b >= a))

    def bisection_links(self) -> float:
        return (self.size // 2) * ((self.size + 1) // 2)


@dataclass(frozen=True)
class Tree(Topology):
    """Endpoints that form a tree themselves: the parent of ``i`` is ``(i-1) // arity``."""

    arity: int = 2

    def __post_init__(self) -> None:
        self._set(link_count=2 * self.size, dims=(self.size,))

    def parent(self, a: int) -> int:
        return (a - 1) // self.arity

    def route(self, a: int, b: int) -> tuple[Run, ...]:
        ups = downs = 0
        low, high = a, b
        if self.arity == 1:  # a chain: nobody should walk along a million of them
            low = high = min(a, b)
            ups, downs = a - low, b - low
        while low != high:
            if low > high:
                low, ups = self.parent(low), ups + 1
            else:
                high, downs = self.parent(high), downs + 1
        runs = (Run("up", a, low, ups), Run("down", low, b, downs))
        return tuple(run for run in runs if run.hops)

    def links(self, run: Run) -> Iterator[int]:
        node = run.start if run.axis == "up" else run.step
        chain = []
        for _ in range(run.hops):
            chain.append(2 * node + (run.axis == "down"))
            node = self.parent(node)
        yield from chain if run.axis == "up" else reversed(chain)

    def neighbors(self, a: int) -> Sequence[int]:
        children = range(a * self.arity + 1, min(a * self.arity + 1 + self.arity, self.size))
        return ([self.parent(a)] if a else []) + list(children)

    def ends(self, link: int) -> tuple[str, str]:
        node, down = divmod(link, 2)
        pair = str(node), str(self.parent(node))
        return (pair[1], pair[0]) if down else pair

    def bisection_links(self) -> float:
        """Exact up to 64 endpoints; above that the links of half the root's children."""
        if self.size > 64:
            return max(1, self.arity // 2)
        cuts = self._cuts(self.size)
        return min(cuts[half] for half in (self.size // 2, self.size - self.size // 2) if half in cuts)

    def _cuts(self, size: int) -> dict[int, int]:
        """For a tree of this form and size: endpoints on the root's side → the fewest links cut."""
        cuts = {1: 0}
        for child in range(1, min(self.arity, size - 1) + 1):
            inside = self._inside(child, size)
            sides: dict[int, int] = {}
            for count, cut in self._cuts(inside).items():
                sides[count] = min(cut, sides.get(count, cut))
                sides[inside - count] = min(cut + 1, sides.get(inside - count, cut + 1))
            joined: dict[int, int] = {}
            for (a, cut_a), (b, cut_b) in product(cuts.items(), sides.items()):
                joined[a + b] = min(cut_a + cut_b, joined.get(a + b, self.size))
            cuts = joined
        return cuts

    def _inside(self, node: int, size: int) -> int:
        """Return endpoints below a node and itself."""
        first = last = node
        count = 0
        while first < size:
            count += min(last, size - 1) - first + 1
            first, last = first * self.arity + 1, last * self.arity + self.arity
        return count


@dataclass(frozen=True)
class Edges(Topology):
    """An explicit list of links ``(a, b, cables)``, both directions. Shortest routes, ties to low numbers."""

    edges: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        self._set(link_count=2 * len(self.edges), dims=(self.size,))

    @cached_property
    def _around(self) -> list[dict[int, int]]:
        around: list[dict[int, int]] = [{} for _ in range(self.size)]
        for number, (a, b, _) in enumerate(self.edges):
            around[a][b] = 2 * number
            around[b][a] = 2 * number + 1
        return [dict(sorted(links.items())) for links in around]

    @cached_in_owner
    def _next(self, b: int) -> list[int]:
        """For every endpoint the next one on the route to ``b`` (-1: none)."""
        ahead = [-1] * self.size
        ahead[b] = b
        front = [b]
        for node in front:
            for near in self._around[node]:
                if ahead[near] < 0:
                    ahead[near] = node
                    front.append(near)
        return ahead

    def unreachable(self) -> list[int]:
        """Return endpoints that cannot be reached from endpoint 0."""
        return [node for node, ahead in enumerate(self._next(0)) if ahead < 0]

    def route(self, a: int, b: int) -> tuple[Run, ...]:
        if a == b:
            return ()
        ahead = self._next(b)
        if ahead[a] < 0:
            raise RouteError(f"there is no path from endpoint {a} to endpoint {b}")
        hops, node = 0, a
        while node != b:
            node, hops = ahead[node], hops + 1
        return (Run("path", a, b, hops),)

    def links(self, run: Run) -> Iterator[int]:
        ahead = self._next(run.step)
        node = run.start
        for _ in range(run.hops):
            yield self._around[node][ahead[node]]
            node = ahead[node]

    def neighbors(self, a: int) -> Sequence[int]:
        return list(self._around[a])

    def ends(self, link: int) -> tuple[str, str]:
        a, b, _ = self.edges[link // 2]
        return (str(b), str(a)) if link % 2 else (str(a), str(b))

    def width(self, link: int) -> int:
        return self.edges[link // 2][2]

    def bisection_links(self) -> float:
        """Exact up to 16 endpoints; above that the best of some cuts, an upper bound."""
        if self.size < 2:
            return 0
        if self.size <= 16:
            halves = (set(half) for half in combinations(range(self.size), self.size // 2))
            return min(self._cut(half) for half in halves)
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(range(self.size))
        graph.add_weighted_edges_from(self.edges)
        cuts = [nx.algorithms.community.kernighan_lin_bisection(graph, seed=seed)[0] for seed in range(8)]
        cuts.append(set(range(self.size // 2)))
        return min(self._cut(half) for half in cuts)

    def _cut(self, half: set[int]) -> int:
        return sum(cables for a, b, cables in self.edges if (a in half) != (b in half))
