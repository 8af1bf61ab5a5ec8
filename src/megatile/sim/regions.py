"""Numbers for the blocks that commands access, and which of them conflict.

Two accesses conflict when their blocks overlap in the same storage and one of them writes. A block gets a
number when it is first seen. ``written[number]`` lists the blocks that overlap it and are written somewhere;
``read[number]``, for a block that is itself written, those that overlap it and are read. For disjoint chunks
both have one entry, so a hazard check is one dictionary lookup; blocks that nobody writes cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.rows import Access
from megatile.sim.storage import Storages

Bounds = tuple[tuple[int, int], ...]
Block = tuple[tuple[int, ...], tuple[int, ...], int]
"""What an access looks up (blocks written, blocks read, both overlapping it) and the block it marks."""
OWNER_SHIFT = 40
"""Blocks of another owner are the same numbers with the owner in the high bits."""
LARGEST_TABLE = 1 << 16
"""Beyond this many entries a table from a number to a block is not worth its memory."""


class Regions:
    """The table of blocks of one plan; the numbers are the same in all units."""

    def __init__(self, storages: Storages) -> None:
        self._storages = storages
        self.written: list[list[int]] = []
        self.read: list[list[int]] = []
        self._bounds: list[tuple[int, Bounds]] = []
        self._whole: list[int] = []
        self._numbers: dict[Any, int] = {}
        self._known: dict[tuple[int, int], Block] = {}
        self._tables: dict[Any, np.ndarray] = {}
        self._every: dict[int, Shelf] = {}
        self._readers: dict[int, Shelf] = {}
        self._writers: dict[int, Shelf] = {}
        self._marked: tuple[set[int], set[int]] = (set(), set())
        for storage in range(storages.count):
            self._whole.append(self._new(storage, ()))
            if storage >= storages.first_slot:
                # A slot is written by the message that arrives and read before its credit goes back.
                self._mark(self._whole[-1], write=True)
                self._mark(self._whole[-1], write=False)
        self._whole_array = np.array(self._whole, dtype=np.int64)

    @property
    def marks(self) -> tuple[int, int]:
        """Changes whenever what `block` gives for a number may have changed."""
        return len(self._marked[0]), len(self._marked[1])

    def whole(self, storage: Any) -> Any:
        """The block that is all of a storage."""
        return self._whole_array[storage] if isinstance(storage, np.ndarray) else self._whole[storage]

    def number(self, access: Access) -> Any:
        """The block's number: an int, or a list with one per unit; notes that it is read or written."""
        numbers = self._number(access)
        marked = self._marked[access.write]
        if not isinstance(numbers, list):
            if numbers not in marked:
                self._mark(numbers, access.write)
        elif not marked.issuperset(numbers):
            for number in numbers:
                if number not in marked:
                    self._mark(number, access.write)
        return numbers

    def block(self, number: int, shift: int = 0) -> Block:
        """A block as general operations take it; ``shift`` makes it another owner's."""
        written, read = self.written[number], self.read[number]
        known = self._known.get((number, shift))
        if known is None or len(known[0]) != len(written) or len(known[1]) != len(read):
            shifted = tuple(n + shift for n in written), tuple(n + shift for n in read), number + shift
            known = self._known[number, shift] = shifted
        return known

    def _number(self, access: Access) -> Any:
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
        if top > LARGEST_TABLE or int(column.min()) < 0:
            # Elements of a large tile, or (never used) numbers of units that leave this row out.
            values, back = np.unique(column, return_inverse=True)
            before, after = fields[:place], fields[place + 1 :]
            numbers = [self._find((*before, value, *after)) for value in values.tolist()]
            return np.array(numbers)[back].tolist()
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

    def _new(self, storage: int, bounds: Bounds) -> int:
        number = len(self.written)
        self._bounds.append((storage, bounds))
        self.written.append(self._overlapping(self._writers, storage, bounds))
        self.read.append([])
        self._shelf(self._every, storage).add(number, bounds)
        return number

    def _overlapping(self, shelves: dict[int, Shelf], storage: int, bounds: Bounds) -> list[int]:
        """Blocks that overlap one: of the same storage, and all of those that lie over it in memory."""
        found = self._shelf(shelves, storage).overlapping(bounds)
        for other in self._storages.aliases.get(storage, ()):
            found += self._shelf(shelves, other).overlapping(())
        return found

    def _shelf(self, shelves: dict[int, Shelf], storage: int) -> Shelf:
        return shelves.setdefault(storage, Shelf())

    def _mark(self, number: int, write: bool) -> None:
        """Note the first read or the first write of a block."""
        marked = self._marked[write]
        if number in marked:
            return
        marked.add(number)
        storage, bounds = self._bounds[number]
        readers, writers = self._shelf(self._readers, storage), self._shelf(self._writers, storage)
        if not write:
            readers.add(number, bounds)
            for other in self._overlapping(self._writers, storage, bounds):
                self.read[other].append(number)
            return
        writers.add(number, bounds)
        for other in self._overlapping(self._every, storage, bounds):
            self.written[other].append(number)
        self.read[number] = self._overlapping(self._readers, storage, bounds)


class Shelf:
    """Blocks of one storage, searched all at once."""

    def __init__(self) -> None:
        self._whole: list[int] = []
        self._numbers: list[int] = []
        self._edges = np.zeros((16, 0, 2), dtype=np.int64)

    def add(self, number: int, bounds: Bounds) -> None:
        if not bounds:
            self._whole.append(number)
            return
        count = len(self._numbers)
        if self._edges.shape[1] != len(bounds):
            # All blocks of a storage have its dimensions, so this happens once.
            self._edges = np.zeros((16, len(bounds), 2), dtype=np.int64)
        if count == len(self._edges):
            self._edges = np.concatenate([self._edges, np.zeros_like(self._edges)])
        self._edges[count] = [(low, low + extent) for low, extent in bounds]
        self._numbers.append(number)

    def overlapping(self, bounds: Bounds) -> list[int]:
        """The blocks that share an element with these bounds, in the order in which they came."""
        if not bounds or not self._numbers:
            return sorted(self._whole + self._numbers) if not bounds else list(self._whole)
        edges = self._edges[: len(self._numbers)]
        low = np.array([b[0] for b in bounds])
        high = low + np.array([b[1] for b in bounds])
        meet = ((edges[:, :, 0] < high) & (low < edges[:, :, 1])).all(axis=1)
        return sorted(self._whole + [self._numbers[i] for i in np.flatnonzero(meet).tolist()])


def overlap(a: Bounds, b: Bounds) -> bool:
    """Whether two blocks share an element; empty bounds mean all of the storage."""
    if not a or not b:
        return True
    return all(
        low < bottom + height and bottom < low + extent
        for (low, extent), (bottom, height) in zip(a, b, strict=False)
    )
