"""A region of a view, tile or tensor as a block of its home, cut where it reaches over the edge."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
from megatile.core.placement import Layout, Owner, Shard, is_whole, share_length
from megatile.ir import nodes as n
from megatile.ir.launch import Cut, divided, divisions
from megatile.ir.program import Binding
from megatile.lower.errors import LoweringError, cannot
from megatile.lower.storage import Home
from megatile.lower.units import Place, Ranges, at_least, clamp, tidy
from megatile.plan import model as pm

if TYPE_CHECKING:
    from megatile.lower.streams import Frame


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
    def kept(self) -> list[int]:
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
        """The part of this block that lies opposite to what is inside of a block that is cut."""
        axes, mine = list(self.axes), self.matched(other)
        for here, there in mine:
            cut = other.axes[there]
            if cut.cut:
                axes[here] = axes[here].part(cut.offset, cut.extent)
        return replace(self, axes=tuple(axes))

    def matched(self, other: Block) -> list[tuple[int, int]]:
        """The dimensions of two regions that are the same; extents of 1 may be left out on either side."""
        mine, theirs = self.kept, other.kept
        if len(mine) != len(theirs):
            mine = [i for i in mine if self.axes[i].size != ONE]
            theirs = [i for i in theirs if other.axes[i].size != ONE]
        if len(mine) != len(theirs):
            raise cannot(
                f"a copy between regions of '{self.home.name}' and '{other.home.name}' of other shapes"
            )
        return list(zip(mine, theirs, strict=True))


def part(block: Block, dim: int, offset: Expr, extent: Expr) -> Block:
    """A run of elements of a block along one of its dimensions."""
    at = block.kept[dim]
    axes = list(block.axes)
    axes[at] = axes[at].part(offset, extent)
    return replace(block, axes=tuple(axes))


def length(block: Block, dim: int) -> Expr:
    return block.axes[block.kept[dim]].extent


def product(extents: object) -> Expr:
    total: Expr = ONE
    for extent in extents:  # type: ignore[attr-defined]
        total = total * extent
    return total


def cuts(
    layout: Layout, parts: list[Cut], grid: tuple[int, ...], rank: Expr, node: n.Node | None
) -> list[Cut]:
    """Each dimension's part of a unit, inside ``parts``."""
    if isinstance(layout, Owner):
        return [_owned(layout, d, start, rank, node) for d, (start, _) in enumerate(parts)]
    result = list(parts)
    for dim, units, number in divisions(layout, grid, rank):
        result[dim] = divided(result[dim], units, number)
    if isinstance(layout, Shard) and layout.order != "contiguous":
        raise cannot(f"a view in '{layout.order}' order below its home", node)
    return result


def _owned(layout: Owner, dim: int, start: Expr, rank: Expr, node: n.Node | None) -> Cut:
    sets = [unit[dim] for unit in layout.sets]
    if any(s and s[-1] - s[0] + 1 != len(s) for s in sets):
        raise cannot("a view whose owner function scatters indices, inside its home", node)
    return start + table([s[0] if s else 0 for s in sets], rank), table([len(s) for s in sets], rank)


class Regions:
    """Finds the blocks of regions for the code of a frame."""

    def __init__(self, frame: Frame):
        self.frame, self.homes = frame, frame.draft.homes
        self.launch = self.homes.launch

    def through(self, parts: list[Cut], views: tuple[n.View, ...], low: int, place: Place) -> list[Cut]:
        """The parts of nested views, the first of which stands below depth ``low``."""
        for view in views:
            high = self.launch.depth(view.scale)
            if not is_whole(view.layout):
                grid = self.launch.grid(view.scale, self.launch.at(low))
                parts = cuts(view.layout, parts, grid, place.rank(low, high), view)
            low = high
        return parts

    def part_of_home(self, home: Home, place: Place) -> list[Cut]:
        """The elements of a tensor that lie in a unit's home; ``start`` counts in the whole tensor."""
        whole: list[Cut] = [(ZERO, Const(int(e))) for e in self.homes.program.param(home.name).shape]
        return self.through(whole, home.views, 0, place)

    def local_lengths(self, home: Home, place: Place) -> list[Expr]:
        """How many elements of every dimension a unit holds."""
        if not scattered(home):
            return [length for _, length in self.part_of_home(home, place)]
        shape = tuple(int(e) for e in self.homes.program.param(home.name).shape)
        parts = self.homes.parts(shape, home.views)
        number = place.rank(0, home.depth)
        return [table([share_length(p[d]) for p in parts], number) for d in range(len(shape))]

    def share(self, name: str, place: Place) -> list[Cut]:
        """This unit's part of every dimension of the home."""
        binding, home = self.homes.table[name], self.homes.home(name)
        if not home.tensor:
            whole: list[Cut] = [(ZERO, Const(e)) for e in home.shape]
            scale = self.homes.table[binding.base].scale
            return self.through(whole, binding.views, self.launch.depth(scale), place)
        seen = len(home.views)
        if home.views and binding.views[:seen] == home.views:
            local: list[Cut] = [(ZERO, length) for length in self.local_lengths(home, place)]
            return self.through(local, binding.views[seen:], self.launch.depth(home.views[-1].scale), place)
        param = self.homes.program.param(home.name)
        parts = self.through([(ZERO, Const(int(e))) for e in param.shape], binding.views, 0, place)
        if not home.views or all(is_whole(v.layout) for v in home.views):
            return parts
        origin = self.part_of_home(home, place)
        return [(simplify(a - b), length) for (a, length), (b, _) in zip(parts, origin, strict=True)]

    def blocks(self, region: n.Region, write: bool = False, peer: Place | None = None) -> list[Block]:
        """Where a region lies: one block, or one for every copy that an outer scale writes."""
        frame, place = self.frame, peer or self.frame.place
        binding = self.homes.table[region.source]
        home = self.homes.home(region.source)
        self.check(binding, home, region)
        moved: list[Cut] = []
        spare = len(region.dims) - len(region.extents)
        if region.along is not None:
            moved = self.share(region.along, frame.place)
        axes = []
        for d, (dim, share) in enumerate(zip(region.dims, self.share(region.source, place), strict=True)):
            start = frame.whole(dim.start)
            if moved and d >= spare:
                start = simplify(start + moved[d - spare][0])
            axes.append(self.axis(dim, start, share, home, moved != [] and d >= spare))
        if peer is None and home.views and binding.views[: len(home.views)] != home.views:
            self.check_own(home, axes)
        at = frame.owner(home, peer) if peer is not None else None
        return [Block(home, (*lead, *axes), at) for lead in self.leads(home, place, write)]

    def check_own(self, home: Home, axes: list[Axis]) -> None:
        """A divided tensor by its own name: what is touched must lie in the unit's own part."""
        frame = self.frame
        if scattered(home) or all(is_whole(v.layout) for v in home.views):
            return
        env = {"unit": frame.stream.units}
        mine = np.broadcast_to(frame.place.rank(0, home.depth).evaluate(env), env["unit"].shape)
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
                    place=frame.node.place if frame.node is not None else None,
                    advice="T.copy(..., src=rank) gets from another's view, dst=rank puts into it, and "
                    "T.allgather makes all parts visible",
                )

    def axis(self, dim: n.Dim, start: Expr, share: Cut, home: Home, moved: bool) -> Axis:
        low, length = share
        padded = self.homes.program.padded and home.tensor
        if dim.extent is None and not padded:
            return Axis(simplify(low + start), ONE, ONE, kept=False)
        size = ONE if dim.extent is None else self.frame.whole(dim.extent)
        may_cut = home.tensor or dim.anchored or moved
        ranges = self.frame.ranges
        if not may_cut or inside(start, size, length, ranges):
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
        """The slices of the leading dimension that a unit means: its own, or all below it (reads: one)."""
        if home.lead == 1:
            return [()]
        high = min(home.copy_depth, place.depth)
        inside_one = math.prod(s.count for s in self.launch.scales[high : home.copy_depth])
        first = place.rank(home.depth, high) * inside_one
        return [(Axis(simplify(first + i), ONE, ONE, kept=False),) for i in range(inside_one if write else 1)]

    def block(self, region: n.Region, write: bool = False, peer: Place | None = None) -> Block:
        found = self.blocks(region, write, peer)
        if len(found) > 1:
            raise cannot(f"a write of all copies of '{region.source}' by this statement", self.frame.node)
        return found[0]

    def check(self, binding: Binding, home: Home, region: n.Region) -> None:
        reshaped = not binding.views and (
            (not home.tensor and (binding.shape, binding.dtype) != (home.shape, home.dtype))
            or (home.tensor and binding.name != binding.base)
        )
        if reshaped:
            raise cannot(f"'{region.source}', another shape of '{binding.base}',", self.frame.node)


def scattered(home: Home) -> bool:
    """Whether units hold indices of a tensor that are no run: only local indices make sense then."""
    return any(
        isinstance(v.layout, Owner) or (isinstance(v.layout, Shard) and v.layout.order != "contiguous")
        for v in home.views
    )


def inside(start: Expr, size: Expr, length: Expr, ranges: Ranges) -> bool:
    """Whether ``size`` elements from ``start`` are surely inside 0..length."""
    return at_least(start, 0, ranges) and at_least(length - start - size, 0, ranges)
