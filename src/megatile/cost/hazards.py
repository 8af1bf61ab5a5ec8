"""When the blocks of every unit's tiles and slots were last read and written, for many units at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.plan.cohort import Cohort, SlotHandle
from megatile.plan.expr import constant
from megatile.plan.model import Plan, Region, Tile, statements
from megatile.plan.program import RegionCode
from megatile.plan.regions import regions_of
from megatile.plan.storage import plan_tile

Array = Any
MOST_ENTRIES = 40_000_000


@dataclass(frozen=True)
class Grid:
    """How a tile is cut: into ``blocks`` equal parts along ``axis``; ``even`` is False if it is cut
    otherwise.
    """

    axis: int = 0
    extent: int = 0
    blocks: int = 1
    even: bool = True


@dataclass(frozen=True)
class Block:
    """Where a region's times stand: the arrays of the last writes and reads, and an index into them.

    ``index`` is None for blocks that are taken not to conflict with anything.
    """

    writes: Array
    reads: Array
    index: Any


class Hazards:
    """Times of all blocks. ``careful``: blocks that may overlap are taken to."""

    def __init__(self, plan: Plan, careful: bool):
        self.plan, self.careful = plan, careful
        self.uneven = False
        self.grids = {tile.name: grid_of(plan, tile) for tile in plan.tiles}
        self._times: dict[Any, tuple[Array, Array]] = {}
        self._slots = {
            c.name: tuple(np.zeros((plan.units, c.members, c.slots), dtype=np.int64) for _ in range(2))
            for c in plan.channels
        }

    def at(self, cohort: Cohort, code: RegionCode, fresh: bool = False) -> Block:
        """The block of a region for the units of a cohort."""
        handle = cohort.handles[code.tile]
        if isinstance(handle, SlotHandle):
            writes, reads = self._slots[handle.channel]
            slot = handle.sequence % writes.shape[2]
            return Block(writes, reads, (cohort.units, handle.member, slot))
        tile = plan_tile(self.plan, handle.tile)
        version = (handle.version + 1 if fresh else handle.version) % tile.versions
        if tile.shared or code.at is not None:
            return self._remote(cohort, tile, code)
        grid = self.grids[tile.name]
        writes, reads = self._arrays(tile, grid.blocks)
        if code.whole or (not grid.even and self.careful):
            self.uneven |= not grid.even
            return Block(writes, reads, (cohort.units, version))
        if not grid.even:
            self.uneven = True
            return Block(writes, reads, None)
        if grid.blocks == 1:
            return Block(writes, reads, (cohort.units, version))
        block = code.start[grid.axis](cohort.ints) // grid.extent
        return Block(writes, reads, (cohort.units, version, block))

    def _remote(self, cohort: Cohort, tile: Tile, code: RegionCode) -> Block:
        """What several units see is ordered by messages, not by hazards; a unit's own accesses to it may
        wait.
        """
        self.uneven = True
        writes, reads = self._arrays(tile, 1, "remote")
        return Block(writes, reads, (cohort.units, 0) if self.careful else None)

    def _arrays(self, tile: Tile, blocks: int, kind: str = "own") -> tuple[Array, Array]:
        key = (tile.name, kind)
        if key not in self._times:
            shape = (self.plan.units, tile.versions, blocks)
            self._times[key] = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        return self._times[key]

    def clocks(self) -> dict[Any, Array]:
        """All times by name: ("tile", name, ...) with blocks along the last axis, and ("slot", channel, ...)."""
        named: dict[Any, Array] = {}
        for (tile, kind), times in self._times.items():
            named |= {("tile" if kind == "own" else "remote", tile, i): array for i, array in enumerate(times)}
        for channel, times in self._slots.items():
            named |= {("slot", channel, i): array for i, array in enumerate(times)}
        return named

    def is_shared(self, cohort: Cohort, code: RegionCode) -> bool:
        handle = cohort.handles[code.tile]
        if isinstance(handle, SlotHandle):
            return False
        return code.at is not None or plan_tile(self.plan, handle.tile).shared

    # --- times -----------------------------------------------------------------------------------

    def written(self, block: Block) -> Any:
        """When earlier writes have finished."""
        return 0 if block.index is None else _latest(block.writes[block.index])

    def used(self, block: Block) -> Any:
        """When earlier reads and writes have finished."""
        if block.index is None:
            return 0
        return np.maximum(_latest(block.writes[block.index]), _latest(block.reads[block.index]))

    def read(self, block: Block, until: Any) -> None:
        if block.index is not None:
            _raise(block.reads, block.index, until)

    def write(self, block: Block, until: Any) -> None:
        if block.index is not None:
            _raise(block.writes, block.index, until)

    def arrive(self, handle: SlotHandle, units: Array, slot: Any, time: Any) -> None:
        writes, reads = self._slots[handle.channel]
        writes[units, handle.member, slot] = time
        reads[units, handle.member, slot] = 0

    def hold(self, handle: SlotHandle, units: Array, slot: Any, until: Any) -> None:
        reads = self._slots[handle.channel][1]
        reads[units, handle.member, slot] = np.maximum(reads[units, handle.member, slot], until)

    def slot_used(self, channel: str, units: Array, member: Any, slot: Any) -> Any:
        writes, reads = self._slots[channel]
        return np.maximum(writes[units, member, slot], reads[units, member, slot])


def _latest(times: Array) -> Array:
    return times if times.ndim == 1 else times.max(axis=-1)


def _raise(times: Array, index: Any, until: Any) -> None:
    now = times[index]
    until = np.asarray(until)
    times[index] = np.maximum(now, until if now.ndim == 1 or until.ndim == 0 else until[:, None])


def grid_of(plan: Plan, tile: Tile) -> Grid:
    """Equal blocks along one axis if all regions of the tile in the plan are such blocks, or all of it."""
    cut: Grid | None = None
    for stream in plan.streams:
        for statement in statements(stream.body):
            for region in regions_of(statement):
                if region.tile != tile.name or not region.start:
                    continue
                found = _cut(tile, region)
                if found is None or (cut is not None and found != cut):
                    return Grid(even=False)
                cut = found
    if cut is None:
        return Grid()
    small = plan.units * tile.versions * cut.blocks <= MOST_ENTRIES
    return cut if small else Grid(even=False)


def _cut(tile: Tile, region: Region) -> Grid | None:
    """The grid that a region is a block of; None if it is of none."""
    partial: list[tuple[int, int]] = []
    for axis, (start, length, extent) in enumerate(zip(region.start, region.shape, tile.shape, strict=True)):
        size = constant(length)
        if size is None:
            return None
        if size != extent or constant(start) != 0:
            partial.append((axis, size))
    if not partial:
        return Grid(0, tile.shape[0] if tile.shape else 1, 1)
    if len(partial) > 1:
        return None
    axis, size = partial[0]
    aligned = size == 1 or (constant(region.start[axis]) or 0) % max(size, 1) == 0
    if not size or tile.shape[axis] % size or not aligned:
        return None
    if size > 1 and constant(region.start[axis]) is None and not _multiple(region.start[axis], size):
        return None
    return Grid(axis, size, tile.shape[axis] // size)


def _multiple(start: Any, size: int) -> bool:
    from megatile.plan.ranges import linear

    terms, offset = linear(start)
    return offset % size == 0 and all(factor % size == 0 for factor in terms.values())
