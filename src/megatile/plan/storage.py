"""Where a plan's data lives while it is executed, and how a region is reached for one unit or for many.

Tiles are arrays (owners, versions, *shape); slots of a channel are bytes (units, members, slots, capacity),
seen with the type and shape of each message. Regions are views wherever the units of a cohort agree on the
indices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import is_float, itemsize, numpy_dtype
from megatile.core.errors import did_you_mean
from megatile.core.operations import cast
from megatile.plan.code import RegionCode
from megatile.plan.cohort import Cohort, SlotHandle, TileHandle, Value, lowest, numbers, pick, spread
from megatile.plan.model import Channel, Plan, PlanError, Tile
from megatile.plan.names import OutsideError

Array = Any
ALIGNMENT = 16
"""Bytes that buffers of tiles are rounded up to."""
MAX_BYTES = 1 << 35
"""Bytes of one tile over all owners, when data is run."""


def allocate(plan: Plan, tile: Tile, data: Array | None) -> Array:
    """Allocate the storage of a tile; what nobody has written yet is NaN (0 for integers)."""
    shape = (plan.owners(tile), tile.versions, *tile.shape)
    if (needed := prod(shape) * itemsize(tile.dtype)) > MAX_BYTES:
        raise PlanError(
            f"tile '{tile.name}' takes {needed} bytes over all owners: data is run with {MAX_BYTES} at most",
            advice="run a smaller size: simulate needs no data",
        )
    if data is None:
        fill: Any = np.nan if is_float(tile.dtype) else 0
        return np.full(shape, fill, dtype=numpy_dtype(tile.dtype))
    array = np.empty(shape, dtype=numpy_dtype(tile.dtype))
    array[:, 0] = data
    return array


def read_inputs(plan: Plan, inputs: Mapping[str, Any]) -> Iterator[tuple[Tile, Array]]:
    """Yield the tiles that a plan takes, with the arrays given for them, [owners, *tile shape]."""
    known = {tile.name: tile for tile in plan.tiles if tile.role in ("input", "inout")}
    for name, data in inputs.items():
        if name not in known:
            raise PlanError(
                f"'{name}' is not an input of the plan", advice=did_you_mean(name, known, what="inputs")
            )
        many = isinstance(data, (list, tuple))
        array = np.stack([np.asarray(d) for d in data]) if many else np.asarray(data)
        expected = (plan.owners(known[name]), *known[name].shape)
        if array.shape != expected:
            raise PlanError(f"input '{name}' has shape {array.shape}, not {expected} (owners, then the tile)")
        yield known[name], cast(array, known[name].dtype)
    missing = [n for n in known if n not in inputs]
    if missing:
        raise PlanError(f"input '{missing[0]}' is missing")


class SlotStore:
    """The slots of one channel family; capacity grows to the largest message, not to the slot size."""

    def __init__(self, channel: Channel, units: int):
        self.channel, self.units = channel, units
        self.bytes = np.empty((units, channel.members, channel.slots, 0), dtype=np.uint8)
        self._views: dict[tuple[str, tuple[int, ...]], Array] = {}

    def typed(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """Return all slots seen as messages of that type and shape: (units, members, slots, *shape)."""
        known = self._views.get((dtype, shape))
        if known is not None:
            return known
        nbytes = prod(shape) * itemsize(dtype)
        if nbytes > self.bytes.shape[-1]:
            capacity = -(-nbytes // ALIGNMENT) * ALIGNMENT
            grown = np.empty((*self.bytes.shape[:3], capacity), dtype=np.uint8)
            grown[..., : self.bytes.shape[-1]] = self.bytes
            self.bytes = grown
            self._views.clear()
        elements = self.bytes[..., :nbytes].view(numpy_dtype(dtype))
        found = self._views[dtype, shape] = elements.reshape(*elements.shape[:3], *shape)
        return found


@dataclass
class Access:
    """A region of a cohort: ``array[first index..., then start:start+shape]`` for each unit.

    Of messages that differ in size there is no common ``array``, only the ``store`` with their type.

    ``lead`` are the leading indices (owner and version, or unit, member and slot), ints or arrays; ``units``
    is a slice when the first leading index is exactly the cohort's units and these form a run.
    """

    array: Array
    lead: tuple[Value, ...]
    start: tuple[Value, ...]
    shape: tuple[Value, ...]
    run: slice | None
    store: tuple[SlotStore, str] | None = None

    @property
    def ragged(self) -> bool:
        """Whether units disagree on the shape; then only parts can be reached."""
        return any(isinstance(extent, np.ndarray) for extent in self.shape)

    @property
    def empty(self) -> bool:
        return not self.ragged and 0 in self.shape

    def part(self, chosen: Any, shape: tuple[int, ...]) -> Access:
        """Return the same for some of the units, which agree on the shape."""
        array = self.array if self.store is None else self.store[0].typed(self.store[1], shape)
        lead, start = (tuple(pick(v, chosen) for v in values) for values in (self.lead[1:], self.start))
        return Access(array, (self.lead[0][chosen], *lead), start, shape, None)

    def batch(self) -> Array | None:
        """Return a view (units, *shape) if there is one."""
        if self.run is None:
            return None
        for index in (*self.lead[1:], *self.start):
            if isinstance(index, np.ndarray):
                return None
        spans = (self.run, *self.lead[1:], *self._spans(None))
        return self.array[spans]

    def one(self, at: int) -> Array:
        """Return a view of unit number ``at`` of the cohort."""
        lead = tuple(int(v[at]) if isinstance(v, np.ndarray) else v for v in self.lead)
        index = (*lead, *self._spans(at))
        return self.array[index]

    def _spans(self, at: int | None) -> tuple[Any, ...]:
        if not self.start:
            return (Ellipsis,)
        low = [v if at is None or not isinstance(v, np.ndarray) else int(v[at]) for v in self.start]
        spans = [slice(a, a + n) for a, n in zip(low, self.shape, strict=True)]
        return (Ellipsis, *spans)

    def gather(self, count: int) -> Array:
        """Return a copy (units, *shape), whatever the indices are."""
        rows = self._rows()
        return rows[0][rows[1]] if rows is not None else self.array[self._index(count)]

    def scatter(self, count: int, values: Array) -> None:
        """Put (units, *shape) where it belongs."""
        rows = self._rows()
        if rows is not None:
            rows[0][rows[1]] = values
        else:
            self.array[self._index(count)] = values

    def _rows(self) -> tuple[Array, tuple[Any, ...]] | None:
        """Return the array cut into blocks along its first axis, if the region is one such block for every
        unit."""
        if not self.start or not isinstance(self.start[0], np.ndarray):
            return None
        lead, extent = len(self.lead), self.shape[0]
        length, *rest = self.array.shape[lead:]
        others = all(not isinstance(low, np.ndarray) and low == 0 for low in self.start[1:])
        if not extent or not others or tuple(rest) != self.shape[1:] or length % extent:
            return None
        if np.any(self.start[0] % extent):
            return None
        blocks = self.array.reshape(*self.array.shape[:lead], length // extent, extent, *rest)
        return blocks, (*self.lead, self.start[0] // extent)

    def _index(self, count: int) -> tuple[Any, ...]:
        """Return an advanced index that selects (units, *shape), element by element."""
        rank = len(self.shape)
        unit_shape = (count,) + (1,) * rank
        index: list[Any] = [spread(v, count).reshape(unit_shape) for v in self.lead]
        for axis, extent in enumerate(self.shape):
            along = np.arange(extent).reshape((1,) * (axis + 1) + (extent,) + (1,) * (rank - axis - 1))
            low = self.start[axis] if self.start else 0
            index.append(along + (low.reshape(unit_shape) if isinstance(low, np.ndarray) else low))
        return tuple(index)


def resolve(
    plan: Plan,
    cohort: Cohort,
    code: RegionCode,
    arrays: dict[str, Array],
    slots: dict[str, SlotStore],
    fresh: bool = False,
) -> Access:
    """Return where the region lies for the cohort."""
    handle = cohort.handles[code.tile]
    extents = handle.shape if isinstance(handle, SlotHandle) else plan.tile(handle.tile).shape
    start, shape = region_span(cohort, code, extents)
    if isinstance(handle, SlotHandle):
        store = slots[handle.channel]
        mine = numbers(plan, cohort, store.channel.level)
        lead = (mine, handle.member, handle.sequence % store.channel.slots)
        if handle.ragged:
            return Access(None, lead, start, shape, None, (store, handle.dtype))
        array, run = store.typed(handle.dtype, handle.shape), cohort.run if mine is cohort.units else None
        return Access(array, lead, start, shape, run)
    tile = plan.tile(handle.tile)
    version = handle.version + 1 if fresh else handle.version
    current = cohort.handles[tile.name]
    assert isinstance(current, TileHandle)
    if lowest(version - current.version) + tile.versions <= 0:
        raise PlanError(
            f"'{code.tile}' is a version of tile '{tile.name}' that has been overwritten",
            advice=f"give the tile more than {tile.versions} versions",
        )
    own = code.at is None and not tile.shared and tile.level == cohort.level
    owner: Value = cohort.units if own else owner_of(plan, cohort, code, tile)
    return Access(
        arrays[tile.name], (owner, version % tile.versions), start, shape, cohort.run if own else None
    )


def owner_of(plan: Plan, cohort: Cohort, code: RegionCode, tile: Tile) -> Array:
    """Return whose copy of a tile each unit of the cohort means."""
    if code.at:
        found = code.at(cohort.ints)
    else:
        found = tile.owner.evaluate({"unit": numbers(plan, cohort, tile.level)})
    owner = spread(found, len(cohort))
    wrong = (owner < 0) | (owner >= plan.owners(tile))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise OutsideError(
            f"tile '{tile.name}' has {plan.owners(tile)} owners, from 0; there is no owner {int(owner[at])}",
            int(cohort.units[at]),
            int(owner[at]),
        )
    return owner


def _outside(
    text: str, cohort: Cohort, code: RegionCode, start: Any, shape: Any, extents: Any
) -> OutsideError:
    count = len(cohort)
    starts, lengths, limits = (
        np.stack([spread(v, count) for v in values]) for values in (start, shape, extents)
    )
    at = int(np.argmax(((starts < 0) | (lengths < 0) | (starts + lengths > limits)).any(axis=0)))
    number = int(cohort.units[at])
    owner = int(spread(code.at(cohort.ints), count)[at]) if code.at else number
    return OutsideError(text, number, owner, tuple(starts[:, at].tolist()))


def region_span(
    cohort: Cohort, code: RegionCode, extents: tuple[Value, ...]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Return starts and extents of a region; refused if it leaves what it is a region of."""
    if code.whole:
        return (), tuple(extents)
    if len(code.start) != len(extents):
        raise PlanError(f"'{code.tile}' has {len(extents)} dimensions, not {len(code.start)}")
    start, shape, limits = code.span(cohort.ints)
    for (first, length, last), extent in zip(limits, extents, strict=True):
        if first < 0 or length < 0 or last > extent:
            text = f"'{code.tile}' of extents {extents} has no elements {first}:{last}"
            raise _outside(text, cohort, code, start, shape, extents)
    return start, shape


def alike(shapes: list[tuple[Value, ...]], count: int) -> Iterator[tuple[Any, list[tuple[int, ...]]]]:
    """Group the units by the shapes they have."""
    rows = np.stack([spread(extent, count) for shape in shapes for extent in shape], axis=1)
    order = np.lexsort(rows.T)
    changes = np.flatnonzero((rows[order[1:]] != rows[order[:-1]]).any(axis=1)) + 1
    for chosen in np.split(order, changes):
        numbers = iter(rows[chosen[0]].tolist())
        yield np.sort(chosen), [tuple(next(numbers) for _ in shape) for shape in shapes]
