"""A region of a tile or tensor as a block of its home, cut where it reaches over the edge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING, cast

import numpy as np

from megatile.core.expr import (
    ONE,
    ZERO,
    Const,
    Expr,
    known,
    maximum,
    minimum,
    simplify,
    symbols,
    table,
)
from megatile.core.placement import is_whole
from megatile.ir import nodes as n
from megatile.ir.expr import Pick
from megatile.ir.program import Binding
from megatile.ir.shares import Cut, Listed, shares
from megatile.lowering.errors import LoweringError, cannot
from megatile.lowering.storage import Home
from megatile.lowering.units import Place, Ranges, at_least, clamp, tidy
from megatile.plan import model as pm

if TYPE_CHECKING:
    from megatile.lowering.streams import StreamScope


@dataclass(frozen=True)
class Axis:
    """One dimension of a block: what of the ``size`` elements asked for lies inside begins at ``offset`` of
    them. ``kept``: the region has this dimension; otherwise it is one index of it."""

    start: Expr
    extent: Expr
    size: Expr
    offset: Expr = ZERO
    kept: bool = True
    cut: bool = False

    def part(self, offset: Expr, extent: Expr) -> Axis:
        return Axis(simplify(self.start + offset), extent, extent, kept=self.kept)


@dataclass(frozen=True)
class Block:
    """A block of a home's tile; ``at`` names another owner."""

    home: Home
    axes: tuple[Axis, ...]
    at: Expr | None = None

    @property
    def cut(self) -> bool:
        return any(axis.cut for axis in self.axes)

    @property
    def kept_axes(self) -> list[int]:
        """The axes that are dimensions of the region."""
        return [i for i, axis in enumerate(self.axes) if axis.kept]

    @property
    def elements(self) -> Expr:
        return product(axis.extent for axis in self.axes)

    def region(self) -> pm.Region:
        starts, shape = tuple(a.start for a in self.axes), tuple(a.extent for a in self.axes)
        whole = all(s == ZERO for s in starts) and [known(e) for e in shape] == list(self.home.extents)
        return pm.Region(self.home.name, () if whole else starts, () if whole else shape, self.at)

    @property
    def is_whole(self) -> bool:
        return not self.region().start and self.at is None

    def inner(self, other: Block) -> Block:
        """Return the part of this block that lies opposite to what is inside of a block that is cut."""
        axes, mine = list(self.axes), self.matched(other)
        for here, there in mine:
            cut = other.axes[there]
            if cut.cut:
                axes[here] = axes[here].part(cut.offset, cut.extent)
        return replace(self, axes=tuple(axes))

    def matched(self, other: Block) -> list[tuple[int, int]]:
        """Return the dimensions of two regions that are the same; extents of 1 may be left out on either
        side."""
        mine, theirs = self.kept_axes, other.kept_axes
        if len(mine) != len(theirs):
            mine = [i for i in mine if self.axes[i].size != ONE]
            theirs = [i for i in theirs if other.axes[i].size != ONE]
        if len(mine) != len(theirs):
            raise cannot(
                f"a copy between regions of '{self.home.name}' and '{other.home.name}' of other shapes"
            )
        return list(zip(mine, theirs, strict=True))


def part(block: Block, dim: int, offset: Expr, extent: Expr) -> Block:
    """Return a run of elements of a block along one of its dimensions."""
    at = block.kept_axes[dim]
    axes = list(block.axes)
    axes[at] = axes[at].part(offset, extent)
    return replace(block, axes=tuple(axes))


def length(block: Block, dim: int) -> Expr:
    return block.axes[block.kept_axes[dim]].extent


def product(extents: Iterable[Expr]) -> Expr:
    return reduce(mul, extents, ONE)


class Regions:
    """Finds the blocks of regions for the code of a scope; with ``place``, those that the unit there means by
    them."""

    def __init__(self, scope: StreamScope, place: Place | None = None):
        self.scope, self.homes, self.place = scope, scope.state.homes, place
        self.launch = self.homes.launch

    def whole(self, expr: Expr) -> Expr:
        """Return a whole number of the unit that means a region."""
        found = None if self.place is None else self.scope.static(expr, self.place)
        return self.scope.whole(expr) if found is None else found

    def part_of_home(self, home: Home, place: Place) -> list[Cut]:
        """Return the elements of a tensor that lie in a unit's home; ``start`` counts in the whole tensor."""
        shape = tuple(int(e) for e in self.homes.program.param(home.name).shape)
        found = shares(self.launch, home.views, shape, 0, place.rank)
        if any(isinstance(one, Listed) for one in found):
            raise cannot(f"'{home.name}', whose parts are not contiguous, by its own name", self.scope.node)
        return cast(list[Cut], found)

    def origin(self, name: str, place: Place) -> list[Expr]:
        """Return where, in its tensor or tile, the home of a unit begins in every dimension."""
        home = self.homes.home(name)
        if not home.views or all(is_whole(v.layout) for v in home.views) or home.scattered:
            return [ZERO] * len(home.shape)
        return [start for start, _ in self.part_of_home(home, place)]

    def blocks(self, region: n.Region, write: bool = False, peer: Place | None = None) -> list[Block]:
        """Return where a region lies: one block, or one for every copy that an outer scale writes."""
        scope, place = self.scope, peer or self.scope.place
        binding = self.homes.table[region.source]
        home = self.homes.home(region.source)
        self.check(binding, home, region)
        if home.scattered:
            axes = [self.listed(dim, home, d) for d, dim in enumerate(region.dims)]
        else:
            origin = self.origin(region.source, place)
            each = zip(region.dims, origin, home.shape, strict=True)
            axes = [self.axis(dim, low, home, length) for dim, low, length in each]
        if peer is None and home.views and binding.owner[: len(home.views)] != home.views:
            self.check_own(home, axes)
        at = scope.owner(home, peer) if peer is not None else None
        return [Block(home, (*lead, *axes), at) for lead in self.leads(home, place, write)]

    def listed(self, dim: n.Dim, home: Home, number: int) -> Axis:
        """Address a dimension of a tensor whose units hold scattered indices, by their places there."""
        if not isinstance(dim.start, Pick):
            raise cannot(f"'{home.name}', whose parts are not contiguous, by its own name", self.scope.node)
        held = self.held(home, number)
        low, length = map(self.whole, local_runs(dim.start, held, self.scope.node))
        start = simplify(low + self.whole(dim.start.index))
        size = ONE if dim.extent is None else self.whole(dim.extent)
        if dim.extent is not None and not inside(start, size, length, self.scope.ranges):
            return self.cut(dim, start, ZERO, length)
        return Axis(start, size, size, kept=dim.extent is not None)

    def held(self, home: Home, number: int) -> list[tuple[int, ...]]:
        """Return the indices of a dimension that every unit holds."""
        shape = tuple(int(e) for e in self.homes.program.param(home.name).shape)
        shares = [part[number] for part in self.homes.parts(shape, home.views)]
        return [tuple(range(*s)) if isinstance(s, tuple) else tuple(int(i) for i in s) for s in shares]

    def check_own(self, home: Home, axes: list[Axis]) -> None:
        """Check a divided tensor by its own name: what is touched must lie in the unit's own part."""
        scope = self.scope
        if home.scattered or all(is_whole(v.layout) for v in home.views):
            return
        env = {"unit": scope.stream.units}
        mine = np.broadcast_to(scope.place.rank(0, home.depth).evaluate(env), env["unit"].shape)
        parts = self.homes.parts(tuple(int(e) for e in self.homes.program.param(home.name).shape), home.views)
        for dim, axis in enumerate(axes):
            if not symbols(axis.start) | symbols(axis.extent) <= {"unit"}:
                continue
            low, size = (np.broadcast_to(e.evaluate(env), mine.shape) for e in (axis.start, axis.extent))
            ends = np.array([p[dim][1] - p[dim][0] for p in parts])[mine]
            for at in np.flatnonzero((size > 0) & ((low < 0) | (low + size > ends)))[:1]:
                index = low[at] + parts[mine[at]][dim][0] + (0 if low[at] < 0 else max(0, ends[at] - low[at]))
                owner = next((r for r, p in enumerate(parts) if p[dim][0] <= index < p[dim][1]), None)
                scale = home.views[-1].scale
                raise LoweringError(
                    f"{scale} {mine[at]} touches '{home.name}' at {index} of dimension {dim}, in the part of "
                    f"another {scale} ({scale} {owner})",
                    place=scope.node.place if scope.node is not None else None,
                    advice="T.copy(..., src=rank) gets from another's view, dst=rank puts into it, and "
                    "T.allgather makes all parts visible",
                )

    def axis(self, dim: n.Dim, origin: Expr, home: Home, length: int) -> Axis:
        """Return one dimension, in a home of ``length`` elements that begins at ``origin``."""
        if isinstance(dim.start, Pick):
            raise cannot("a view whose owner function scatters indices, inside its home", self.scope.node)
        start = self.whole(dim.start)
        if dim.extent is None and self.homes.program.padded and home.tensor:
            return self.cut(dim, start, ZERO, Const(length))
        if dim.limits is None:
            size = ONE if dim.extent is None else self.whole(dim.extent)
            return Axis(simplify(start - origin), size, size, kept=dim.extent is not None)
        low, high = map(self.whole, dim.limits)
        return self.cut(dim, simplify(start - low), simplify(low - origin), simplify(high - low))

    def cut(self, dim: n.Dim, start: Expr, low: Expr, length: Expr) -> Axis:
        """Return what of a dimension lies in the ``length`` elements from ``low``; ``start`` counts in
        those."""
        size, ranges = ONE if dim.extent is None else self.whole(dim.extent), self.scope.ranges
        if inside(start, size, length, ranges):
            return Axis(simplify(low + start), size, size, kept=dim.extent is not None)
        if at_least(start, 0, ranges) and at_least(length - start, 0, ranges):
            first, extent = start, tidy(minimum(length - start, size), ranges)
        else:
            first = tidy(clamp(start, 0, length), ranges)
            extent = tidy(maximum(minimum(start + size, length) - first, 0), ranges)
        # A block behind the end has no elements; it begins where the tile does.
        skipped = tidy(maximum(first - start, 0), ranges)
        return Axis(simplify(low + first), extent, size, skipped, dim.extent is not None, True)

    def leads(self, home: Home, place: Place, write: bool) -> list[tuple[Axis, ...]]:
        """Return the slices of the leading dimension that a unit means: its own, or all below it (reads:
        one)."""
        if home.lead == 1:
            return [()]
        high = min(home.copy_depth, place.depth)
        inside_one = math.prod(s.count for s in self.launch.scales[high : home.copy_depth])
        first = place.rank(home.depth, high) * inside_one
        return [(Axis(simplify(first + i), ONE, ONE, kept=False),) for i in range(inside_one if write else 1)]

    def block(self, region: n.Region, write: bool = False, peer: Place | None = None) -> Block:
        found = self.blocks(region, write, peer)
        if len(found) > 1:
            raise cannot(f"a write of all copies of '{region.source}' by this statement", self.scope.node)
        return found[0]

    def check(self, binding: Binding, home: Home, region: n.Region) -> None:
        reshaped = not binding.owner and (
            (not home.tensor and (binding.shape, binding.dtype) != (home.shape, home.dtype))
            or (home.tensor and binding.name != binding.base)
        )
        if reshaped:
            raise cannot(f"'{region.source}', another shape of '{binding.base}',", self.scope.node)


def local_runs(pick: Pick, held: list[tuple[int, ...]], node: n.Node | None) -> Cut:
    """Return the places, among the indices that each unit holds, of a view's: where they begin, and how
    many."""
    below, starts = len(pick.sets) // len(held), []
    for number, wanted in enumerate(pick.sets):
        there = held[number // below]
        start = there.index(wanted[0]) if wanted else 0
        if there[start : start + len(wanted)] != wanted:
            raise cannot("a view whose owner function scatters indices, inside its home", node)
        starts.append(start)
    return table(starts, pick.row), table([len(wanted) for wanted in pick.sets], pick.row)


def inside(start: Expr, size: Expr, length: Expr, ranges: Ranges) -> bool:
    """Return whether ``size`` elements from ``start`` are surely inside 0..length."""
    return at_least(start, 0, ranges) and at_least(length - start - size, 0, ranges)
