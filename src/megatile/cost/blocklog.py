"""Recent accesses to the blocks of a tile that is cut into many: only those that a later one may still wait
for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
Where = tuple[Any, Any, Any]  # units, their buffer, their block (or EVERYTHING)
NOTHING, EVERYTHING = -1, -2


class Entry:
    """For each unit one block in one buffer, and when it was last written and read."""

    def __init__(self, units: int):
        self.block = np.full(units, NOTHING, dtype=np.int64)
        self.buffer = np.zeros(units, dtype=np.int64)
        self.writes = np.zeros(units, dtype=np.int64)
        self.reads = np.zeros(units, dtype=np.int64)


class BlockLog:
    """The accesses of all units to one tile; ``floor`` is a time before which nothing matters any more."""

    def __init__(self, units: int, blocks: int):
        self.units, self.blocks = units, blocks
        self.entries: list[Entry] = []
        self.floor = 0

    def latest(self, where: Where, *, reads: bool) -> Array:
        """When the accesses to a block (or to EVERYTHING) have finished: writes, or reads as well."""
        units, buffer, block = where
        time = np.zeros(len(units), dtype=np.int64)
        for entry in self.entries:
            there = entry.block[units]
            same = (there == block) | (there == EVERYTHING)
            if isinstance(block, int) and block == EVERYTHING:
                same = there != NOTHING
            same &= entry.buffer[units] == buffer
            last = entry.writes[units]
            if reads:
                last = np.maximum(last, entry.reads[units])
            time = np.maximum(time, np.where(same, last, 0))
        return time

    def note(self, where: Where, until: Array, *, write: bool) -> None:
        """An access that lasts ``until``."""
        units = where[0]
        entry = self._entry(*where)
        times = entry.writes if write else entry.reads
        times[units] = np.maximum(times[units], until)

    def _entry(self, units: Array, buffer: Any, block: Any) -> Entry:
        for entry in self.entries:
            if (entry.block[units] == block).all() and (entry.buffer[units] == buffer).all():
                return entry
        self.entries = [e for e in self.entries if max(int(e.writes.max()), int(e.reads.max())) > self.floor]
        for entry in self.entries:
            if (entry.block[units] == NOTHING).all():
                break
        else:
            entry = Entry(self.units)
            self.entries.append(entry)
        entry.block[units], entry.buffer[units] = block, buffer
        return entry

    def clocks(self, tile: str) -> dict[Any, Array]:
        """The times of all entries, and what they are times of."""
        named: dict[Any, Array] = {}
        for i, entry in enumerate(self.entries):
            named |= {("log", tile, i, "writes"): entry.writes, ("log", tile, i, "reads"): entry.reads}
            named |= {("block", tile, i): entry.block, ("buffer", tile, i): entry.buffer}
        return named
