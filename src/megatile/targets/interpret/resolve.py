"""Find where a region lies for a unit: storage, copies and elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import Const, Expr, difference
from megatile.core.placement import compose, numpy_index, share_length
from megatile.ir.expr import Pick
from megatile.ir.nodes import Dim, Region
from megatile.targets.interpret.errors import OutOfBoundsError, RemoteAccessError, RunError
from megatile.targets.interpret.places import Name
from megatile.targets.interpret.storage import StoredArray
from megatile.targets.interpret.units import Unit, describe

if TYPE_CHECKING:
    from megatile.targets.interpret.machine import Interpreter

Number = int | Callable[[Any], Any]
"""Known now, or a function of the unit."""


@dataclass
class Target:
    """A region resolved for one unit: where in the storage, and which part of the region that is."""

    name: Name
    storage: StoredArray
    copies: tuple[int, int]
    items: list[Any]
    """Per dimension of the storage: (start, stop) or an array of indices."""
    shape: tuple[int, ...]
    """Extents of the region, indexed dimensions left out."""
    dropped: tuple[int, ...] = ()
    inner: tuple[Any, ...] | None = None
    """The part of the region that lies inside, if an anchor reaches over the edge."""

    @property
    def index(self) -> tuple[Any, ...]:
        """The NumPy index of the elements; copies first."""
        return numpy_index([self.copies, *self.items])

    def __post_init__(self) -> None:
        self.stored_shape = tuple([i[1] - i[0] if isinstance(i, tuple) else len(i) for i in self.items])

    @property
    def valid_shape(self) -> tuple[int, ...]:
        return tuple(s for d, s in enumerate(self.stored_shape) if d not in self.dropped)

    @property
    def is_empty(self) -> bool:
        return 0 in self.stored_shape

    def row(self) -> tuple[Any, ...]:
        return (self.copies, *self.items)


@dataclass(frozen=True)
class Axis:
    """One dimension of a region, ready to be evaluated."""

    number: int
    start: Number
    extent: Number | None
    anchored: bool
    within: Callable[[Any], Any] | None = None
    """The indices, in the storage, that the dimension is limited to and counts in; None: all."""


@dataclass(frozen=True)
class RegionPlan:
    """A region, ready to be evaluated; ``fixed`` if it is the same for every unit."""

    region: Region
    name: Name
    axes: tuple[Axis, ...]
    along: Name | None
    spare: int
    fixed: tuple[list[Any], tuple[int, ...], tuple[int, ...]] | None


@dataclass
class Found:
    """Where one dimension lies: ``item`` in the storage, its ``size``, the ``part`` of it that is inside."""

    item: Any
    size: int | None = None
    part: Any = None


class Resolver:
    """Regions of names, for units."""

    def __init__(self, machine: Interpreter):
        self.machine = machine
        self.plans: dict[int, RegionPlan] = {}

    def resolve(self, region: Region, unit: Unit, home: Unit | None = None, context: Any = None) -> Target:
        """Return where ``region`` is for ``unit``; with ``home``, in the tiles of that unit instead.

        ``context`` is where variables are looked up, if not in the unit.
        """
        plan = self.plans.get(id(region)) or self._prepare(region)
        places, owner = self.machine.places, home or unit
        storage, copies = places.storage(plan.name, owner), places.copies(plan.name, owner)
        if plan.fixed is not None:
            target = Target(plan.name, storage, copies, *plan.fixed)
            return target if home is not None else self.at_home(target, unit)
        shares = places.share(plan.name, owner) or tuple((0, length) for length in storage.shape)
        origin = places.share(plan.along, unit) if plan.along is not None else None
        found = []
        for axis, share in zip(plan.axes, shares, strict=True):
            if axis.within is not None:
                share = axis.within(context or unit)
            moved = origin[axis.number - plan.spare] if origin and axis.number >= plan.spare else None
            found.append(self._axis(plan.region, axis, share, moved, context or unit, context is not None))
        target = Target(plan.name, storage, copies, *_together(found))
        return target if home is not None else self.at_home(target, unit)

    def at_home(self, target: Target, unit: Unit) -> Target:
        """Return the target, if it lies where the unit can touch it: not in the part of another device."""
        places = self.machine.places
        mine = places.sharded.get(target.name.base)
        if mine is None or unit.depth < mine.depth or target.name.views_of(mine) or target.storage.gathered:
            return target
        for d, (item, share) in enumerate(zip(target.items, places.part(mine, unit), strict=True)):
            if not target.is_empty and not _inside(item, share):
                low, high = (item[0], item[1]) if isinstance(item, tuple) else (item[0], item[-1] + 1)
                raise RemoteAccessError(
                    f"{describe(unit, self.machine.launch)} touches '{target.name.name}' at {low}:{high} of "
                    f"dimension {d}, in the part of another {mine.binding.scale}{self._owner(mine, d, low)}",
                    advice=f"'{mine.name}' is its own part; T.copy(..., src=rank) gets from another's view, "
                    "dst=rank puts into it, and T.allgather makes all parts visible",
                )
        return target

    def _owner(self, mine: Name, dim: int, index: int) -> str:
        """Return whose part an index of a dimension is in, as words."""
        scales = self.machine.launch.scales[: mine.depth]
        for path in np.ndindex(*(s.count for s in scales)):
            share = self.machine.places.composed(mine, path[mine.owner_depth :])[dim]
            if _inside((index, index + 1), share):
                words = [f"{s.name} {i}" for s, i in zip(scales, path, strict=True) if s.count > 1]
                return f" ({', '.join(words)})"
        return ""

    def _prepare(self, region: Region) -> RegionPlan:
        names = self.machine.places.names
        name = names[region.source]
        axes = tuple(self._prepared(number, dim) for number, dim in enumerate(region.dims))
        along = names[region.along] if region.along else None
        spare = len(region.dims) - len(region.extents)
        plan = RegionPlan(region, name, axes, along, spare, _fixed(name, axes) if along is None else None)
        self.plans[id(region)] = plan  # which keeps the region, so that its id stays its own
        return plan

    def _prepared(self, number: int, dim: Dim) -> Axis:
        extent = None if dim.extent is None else self._number(dim.extent)
        if isinstance(dim.start, Pick):
            row = self.machine.compile(dim.start.row)
            held = [np.array(indices, np.int64) for indices in dim.start.sets]
            start = self._number(dim.start.index)
            return Axis(number, start, extent, dim.anchored, lambda context: held[int(row(context))])
        if dim.limits is None:
            return Axis(number, self._number(dim.start), extent, dim.anchored)
        low, high = (self.machine.compile(e) for e in dim.limits)
        start = self._number(difference(dim.start, dim.limits[0]))
        return Axis(number, start, extent, True, lambda context: (int(low(context)), int(high(context))))

    def _number(self, expr: Expr) -> Number:
        return int(expr.value) if isinstance(expr, Const) else self.machine.compile(expr)

    def _axis(
        self, region: Region, axis: Axis, share: Any, moved: Any, context: Any, elementwise: bool
    ) -> Found:
        """Return one dimension; ``moved`` is the part of a view that an anchor goes along with. The elements
        of iterations are no bulk copy: all of them must be inside."""
        length = share_length(share)
        at = _value(axis.start, context)
        if axis.extent is None:
            if not 0 <= at < length and region.source in self.machine.padded:
                return Found((0, 0))
            if not 0 <= at < length:
                raise _outside(region, axis, at, at + 1, length)
            return Found(compose(share, (at, at + 1)))
        size = _value(axis.extent, context)
        if size < 0:
            raise RunError(f"a region of '{region.source}' has extent {size}", advice="check its bounds")
        # A view may have its part outside where the whole tile does not lie.
        excused = (moved is not None and 0 <= at < length) or (axis.within is not None and axis.anchored)
        item: Any
        part: Any
        if moved is not None and not isinstance(moved, tuple):
            item, part = _clip_list(at + moved, length)
        else:
            at += moved[0] if moved is not None else 0
            item, part = _clip(at, size, length)
        if part is not None and region.source in self.machine.padded:
            excused = True
        elif part is not None and elementwise:
            raise _outside(region, axis, at, at + size, length)
        if part is not None and not excused:
            self._over_the_edge(region, axis, (at, at + size), length, bool(size) and share_length(item) <= 0)
        return Found(compose(share, item), size, part)

    def _over_the_edge(
        self, region: Region, axis: Axis, where: tuple[int, int], length: int, entirely: bool
    ) -> None:
        """Beyond tensors are zeros, as bulk copies have it, unless the run is strict; tiles end there."""
        machine = self.machine
        pads = machine.places.names[region.source].alloc is None and not machine.strict_bounds
        if not pads and (entirely or not axis.anchored):
            raise _outside(region, axis, *where, length, entirely and axis.anchored)
        if not axis.anchored:
            self.note_edge(region, axis, where, length)

    def note_edge(self, region: Region, axis: Axis, where: tuple[int, int], length: int) -> None:
        """Say once of a slice of a tensor that it reaches over the edge."""
        if id(region) not in self.machine.noted:
            self.machine.noted.add(id(region))
            error = _outside(region, axis, *where, length)
            self.machine.note(
                f"{error.message}: it is padded with zeros there, and not written", error.advice
            )


def _inside(item: Any, share: Any) -> bool:
    if isinstance(item, tuple) and isinstance(share, tuple):
        return bool(share[0] <= item[0] and item[1] <= share[1])
    indices = np.arange(*item) if isinstance(item, tuple) else item
    return bool(np.isin(indices, np.arange(*share) if isinstance(share, tuple) else share).all())


def _value(number: Number, context: Any) -> int:
    return number if isinstance(number, int) else int(number(context))


def _together(
    found: list[Found],
) -> tuple[list[Any], tuple[int, ...], tuple[int, ...], tuple[Any, ...] | None]:
    """Items, shape, dropped dimensions, and the part inside if any dimension is cut."""
    kept = [f for f in found if f.size is not None]
    shape = tuple(f.size for f in kept if f.size is not None)
    dropped = tuple(d for d, f in enumerate(found) if f.size is None)
    inner = None
    if any(f.part is not None for f in kept):
        inner = tuple((0, f.size) if f.part is None else f.part for f in kept)
    return [f.item for f in found], shape, dropped, inner


def _fixed(name: Name, axes: tuple[Axis, ...]) -> tuple[list[Any], tuple[int, ...], tuple[int, ...]] | None:
    """Items, shape and dropped dimensions of a region of numbers inside a tile that is not a view."""
    if name.binding.views:
        return None
    items: list[Any] = []
    for axis, length in zip(axes, name.binding.shape, strict=True):
        if not isinstance(axis.start, int) or axis.within is not None:
            return None
        size = 1 if axis.extent is None else axis.extent
        if not isinstance(size, int) or axis.start < 0 or axis.start + size > length:
            return None
        items.append((axis.start, axis.start + size))
    shape = tuple(a.extent for a in axes if isinstance(a.extent, int))
    return items, shape, tuple(a.number for a in axes if a.extent is None)


def _outside(
    region: Region, axis: Axis, low: int, high: int, length: int, entirely: bool = False
) -> OutOfBoundsError:
    where = f"'{region.source}[{low}]'" if high == low + 1 else f"'{region.source}[{low}:{high}]'"
    if entirely:
        return OutOfBoundsError(
            f"{where} lies entirely outside: dimension {axis.number} has {length} elements",
            advice="check the loop bound or the origin of the anchor",
        )
    advice = "an anchor such as A[i, j] may reach over the edge, a slice is meant to fit"
    if axis.extent is None:
        advice = "check the index, or guard it: if i < n"
    return OutOfBoundsError(
        f"{where} is out of bounds: dimension {axis.number} has {length} elements", advice=advice
    )


def _clip(at: int, size: int, length: int) -> tuple[tuple[int, int], tuple[int, int] | None]:
    """Return the run inside 0..length, and which part of the whole it is (None: all of it)."""
    if at >= 0 and at + size <= length:
        return (at, at + size), None
    low = min(max(at, 0), length)
    high = max(low, min(at + size, length))
    return (low, high), (low - at, high - at)


def _clip_list(indices: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray | None]:
    inside = (indices >= 0) & (indices < length)
    if inside.all():
        return indices, None
    return indices[inside], np.flatnonzero(inside)
