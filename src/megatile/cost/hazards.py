"""When the blocks of every unit's tiles and slots were last read and written, for many units at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.expr import constant
from megatile.cost.blocklog import EVERYTHING, BlockLog
from megatile.plan.code import RegionCode
from megatile.plan.cohort import Cohort, SlotHandle
from megatile.plan.memory import aliases
from megatile.plan.model import Plan, Region, Tile, statements
from megatile.plan.statements import regions_of

Array = Any
# Tiles cut into more blocks than this get a log of recent accesses instead of a table of all blocks.
TABLE_ENTRIES = 1_000_000


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

    ``index`` is None for blocks that are taken not to conflict with anything. With a ``log`` the index is
    (units, buffer, block).
    """

    writes: Array
    reads: Array
    index: Any
    log: BlockLog | None = None


class Hazards:
    """Times of all blocks. ``careful``: blocks that may overlap are taken to."""

    def __init__(self, plan: Plan, careful: bool):
        self.plan, self.careful = plan, careful
        self.uneven = False
        self.grids = {tile.name: grid_of(plan, tile) for tile in plan.tiles}
        self.aliases = aliases(plan)
        self._times: dict[Any, tuple[Array, Array]] = {}
        self._logs: dict[str, BlockLog] = {}
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
        tile = self.plan.tile(handle.tile)
        version = (handle.version + 1 if fresh else handle.version) % tile.versions
        if tile.shared or code.at is not None:
            return self._remote(cohort, tile, code)
        if tile.name in self.aliases:
            return self._at_one_address(cohort, self.plan.tile(self.aliases[tile.name]))
        grid = self.grids[tile.name]
        if grid.even and self.plan.units * tile.versions * grid.blocks > TABLE_ENTRIES:
            log = self._logs.setdefault(tile.name, BlockLog(self.plan.units, grid.blocks))
            which = EVERYTHING if code.whole else code.start[grid.axis](cohort.ints) // grid.extent
            return Block(None, None, (cohort.units, version, which), log)
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

    def _at_one_address(self, cohort: Cohort, first: Tile) -> Block:
        """Tiles that lie over each other in memory: all of them wait for all of them, or for none."""
        self.uneven = True
        writes, reads = self._arrays(first, 1, "address")
        return Block(writes, reads, (cohort.units, 0) if self.careful else None)

    def _arrays(self, tile: Tile, blocks: int, kind: str = "own") -> tuple[Array, Array]:
        key = (tile.name, kind)
        if key not in self._times:
            shape = (self.plan.units, tile.versions, blocks)
            self._times[key] = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        return self._times[key]

    def clocks(self) -> dict[Any, Array]:
        """All times by name; those of ("tile", name, ...) have the blocks along the last axis."""
        named: dict[Any, Array] = {}
        for (tile, kind), times in self._times.items():
            named |= {
                ("tile" if kind == "own" else "remote", tile, i): array for i, array in enumerate(times)
            }
        for tile, log in self._logs.items():
            named |= log.clocks(tile)
        for channel, slots in self._slots.items():
            named |= {("slot", channel, i): array for i, array in enumerate(slots)}
        return named

    def forget(self, floor: int) -> None:
        """Nothing that has finished by ``floor`` can hold up anybody any more."""
        for log in self._logs.values():
            log.floor = floor

    def is_shared(self, cohort: Cohort, code: RegionCode) -> bool:
        handle = cohort.handles[code.tile]
        if isinstance(handle, SlotHandle):
            return False
        return code.at is not None or self.plan.tile(handle.tile).shared

    # --- times -----------------------------------------------------------------------------------

    def written(self, block: Block) -> Any:
        """When earlier writes have finished."""
        if block.log is not None:
            return block.log.latest(block.index, reads=False)
        return 0 if block.index is None else _latest(block.writes[block.index])

    def used(self, block: Block) -> Any:
        """When earlier reads and writes have finished."""
        if block.log is not None:
            return block.log.latest(block.index, reads=True)
        if block.index is None:
            return 0
        return np.maximum(_latest(block.writes[block.index]), _latest(block.reads[block.index]))

    def read(self, block: Block, until: Any) -> None:
        if block.log is not None:
            block.log.note(block.index, until, write=False)
        elif block.index is not None:
            _raise(block.reads, block.index, until)

    def write(self, block: Block, until: Any) -> None:
        if block.log is not None:
            block.log.note(block.index, until, write=True)
        elif block.index is not None:
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
    return cut or Grid()


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
    from megatile.core.expr import linear

    terms, offset = linear(start)
    return offset % size == 0 and all(factor % size == 0 for factor in terms.values())
