"""Numbers for the blocks that commands access, and which of them overlap.

Two accesses conflict when their blocks overlap in the same storage. A block gets a number when it is
first seen; ``overlaps[number]`` lists every block seen so far that overlaps it (itself included). For the
usual case of disjoint chunks that list has one entry, and a hazard check is one dictionary lookup.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.rows import Access
from megatile.sim.storage import Storages

OWNER_SHIFT = 40
"""Blocks of another owner are the same numbers with the owner in the high bits."""


class Regions:
    """The table of blocks of one plan; the numbers are the same in all units."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self.overlaps: list[list[int]] = []
        self._whole: list[int] = []
        self._numbers: dict[Any, int] = {}
        self._tables: dict[Any, np.ndarray] = {}
        self._seen: dict[int, list[tuple[int, tuple[tuple[int, int], ...]]]] = {}
        for storage in range(storages.count):
            self._whole.append(self._new(storage, ()))
        self._whole_array = np.array(self._whole, dtype=np.int64)

    def whole(self, storage: Any) -> Any:
        """The block that is all of a storage."""
        return self._whole_array[storage] if isinstance(storage, np.ndarray) else self._whole[storage]

    def number(self, access: Access) -> Any:
        """The block's number: an int, or a list with one per unit."""
        storage, bounds = access.storage, access.bounds
        if not bounds or self._covers_all(storage, bounds):
            result = self.whole(storage)
            return result.tolist() if isinstance(result, np.ndarray) else result
        fields = [storage, *(number for pair in bounds for number in pair)]
        varying = [i for i, f in enumerate(fields) if isinstance(f, np.ndarray)]
        if not varying:
            return self._find(tuple(fields))
        if len(varying) == 1 and varying[0]:
            return self._row(fields, varying[0])
        size = len(fields[varying[0]])
        columns = [f.tolist() if isinstance(f, np.ndarray) else [f] * size for f in fields]
        find, numbers = self._find, self._numbers
        return [numbers.get(key) or find(key) for key in zip(*columns, strict=True)]

    def _row(self, fields: list[Any], place: int) -> list[int]:
        """Blocks that differ in one number only: a table from that number to the block's."""
        column = fields[place]
        key = (place, *fields[:place], *fields[place + 1 :])
        table = self._tables.get(key)
        top = int(column.max())
        if table is None or len(table) <= top:
            grown = np.full(2 * top + 2, -1, dtype=np.int64)
            if table is not None:
                grown[: len(table)] = table
            table = self._tables[key] = grown
        result = table[column]
        if result.min() < 0:
            for value in np.unique(column[result < 0]).tolist():
                table[value] = self._find((*fields[:place], value, *fields[place + 1 :]))
            result = table[column]
        return result.tolist()

    def _covers_all(self, storage: Any, bounds: tuple[tuple[Any, Any], ...]) -> bool:
        if isinstance(storage, np.ndarray):
            return False
        for low, extent in bounds:
            if type(low) is not int or low or type(extent) is not int:
                return False
        what = self._storages.what(storage)
        return isinstance(what, pm.Tile) and tuple(e for _, e in bounds) == what.shape

    def _find(self, key: tuple[int, ...]) -> int:
        number = self._numbers.get(key)
        if number is None:
            bounds = tuple(zip(key[1::2], key[2::2], strict=True))
            number = self._numbers[key] = self._new(key[0], bounds)
        return number

    def _new(self, storage: int, bounds: tuple[tuple[int, int], ...]) -> int:
        number = len(self.overlaps)
        mine = [number]
        self.overlaps.append(mine)
        seen = self._seen.setdefault(storage, [])
        for other, theirs in seen:
            if overlap(bounds, theirs):
                mine.append(other)
                self.overlaps[other].append(number)
        seen.append((number, bounds))
        return number


def overlap(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]) -> bool:
    """Whether two blocks share an element; empty bounds mean all of the storage."""
    if not a or not b:
        return True
    return all(
        low < bottom + height and bottom < low + extent
        for (low, extent), (bottom, height) in zip(a, b, strict=False)
    )
