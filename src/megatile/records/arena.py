"""The memory of tables: all of them in one array of integers, which does not move."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Mapping
from operator import mul
from typing import Any, ClassVar
from weakref import finalize

import numpy as np

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

from megatile.core.cached import cached
from megatile.records.rows import NONE, Row, Table, Words

RESERVED_BYTES = 1 << 37
"""Address space of an arena (only used pages take memory); halved until it is granted."""
ADDRESS_SPACE = 1 << 46
"""Address space of all arenas: the more of it they have, the less a new one is given."""
_RESERVED: dict[int, int] = {}
"""What they have."""
LEAST_BYTES = 1 << 28
"""Memory of an arena where no such address space is granted."""
MAX_SPARE_BYTES = 1 << 28
"""Memory that a pooled arena keeps."""
_STAGGER = 552
"""Words by which tables begin later than the one before in their shares: in processor caches they would take
each other's place otherwise."""
_SPARE: list[Any] = []
"""The address space of an arena that is gone: clearing the pages of a new one takes longer than most runs."""


class ArenaLayout:
    """The tables that a class declares as fields, and what the array begins with: the fields, for how many
    rows each table has room, how wide the rows are of those that end with bounds."""

    def __init__(
        self,
        state: type[Row],
        names: Mapping[str, Any],
        *,
        filled: Mapping[str, str],
        rooms: Mapping[str, int],
        dimensions: Mapping[str, int],
        shares: dict[str, int],
        none: tuple[str, ...],
    ) -> None:
        """``filled``: tables whose rows functions take, with the total that says how many; ``rooms``: tables
        that have all their rows from the beginning, with how many (NONE: as many as there is room for);
        ``dimensions``: those whose rows end with bounds, with how many words each takes; ``shares``: how many
        shares of the memory a table has, if not one; ``none``: totals that begin with NONE."""
        self.state, self.filled, self.dimensions, self.shares = state, filled, dimensions, shares
        self.whole = rooms
        self.tables: dict[str, type[Row] | None] = {
            name: None if field.kind == "Words" else names[field.kind[len("Table[") : -1]]
            for name, field in state.fields.items()
            if field.kind != "int"
        }
        """What the rows of each table are (None: single words)."""
        count, tables = len(state.fields), len(self.tables)
        self.bases = {name: state.fields[name].at for name in self.tables}
        """Where it stands at the head of the array where a table begins."""
        self.rooms = {name: at + tables for name, at in self.bases.items()}
        """Where its row capacity is stored."""
        self.widths = {name: count + tables + number for number, name in enumerate(dimensions)}
        """Where it stands how wide rows are that end with bounds."""
        self.header = count + tables + len(dimensions)
        self.totals = [state.fields[total].at for total in filled.values()]
        self.none = [state.fields[name].at for name in none]


def _limit() -> int:
    """Return how much address space this process may have."""
    if resource is None:
        return sys.maxsize
    found = resource.getrlimit(resource.RLIMIT_AS)[0]
    return sys.maxsize if found == resource.RLIM_INFINITY else found


def _reserve() -> Any:
    """Address space in which pages that nothing touches cost nothing, as an array."""
    size, left = RESERVED_BYTES, max(0, ADDRESS_SPACE - sum(_RESERVED.values()))
    while size > LEAST_BYTES and size > min(_limit() // 8, left // 256):  # leave room for others
        size //= 2
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    while size > LEAST_BYTES and hasattr(mmap, "MAP_PRIVATE"):
        try:
            space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)
        except (OSError, ValueError, OverflowError):
            size //= 2
        else:
            memory = np.frombuffer(space, dtype=np.int64)
            _RESERVED[id(memory)] = size
            finalize(memory, _RESERVED.pop, id(memory))
            return memory
    return np.frombuffer(np.empty(LEAST_BYTES // 8, dtype=np.int64).data, dtype=np.int64)


def _give_back(space: Any, layout: ArenaLayout, used: dict[str, int], widths: dict[str, int]) -> None:
    """Let another arena have the address space of one that is gone, with all views of its tables."""
    if _SPARE or memoryview(space).nbytes < LEAST_BYTES:
        return
    words = _words_used(np.frombuffer(space, dtype=np.int64, count=layout.header), layout, used, widths)
    if 8 * words > MAX_SPARE_BYTES and isinstance(space, mmap.mmap):
        space.madvise(mmap.MADV_DONTNEED)
    _SPARE.append(space)


def _words_used(head: Any, layout: ArenaLayout, used: dict[str, int], widths: dict[str, int]) -> int:
    """Return how much of an arena's memory is used, which begins with ``head``."""
    words = sum(map(mul, used.values(), widths.values()))
    filled = head[layout.totals].tolist()
    return words + sum(
        max(0, total - used[name]) * widths[name] for name, total in zip(layout.filled, filled, strict=True)
    )


@cached()
def _divided(
    layout: ArenaLayout, words: int
) -> tuple[Any, dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
    """Return what memory of so many words begins with; of every table where it begins, the words of its
    share, how wide rows are and for how many there is room."""
    head = np.zeros(layout.header, dtype=np.int64)
    share = words // (len(layout.tables) + 1 + sum(layout.shares.values())) // 8 * 8
    stagger, at = min(_STAGGER, share // 64 // 8 * 8), share
    bases, words_of, widths, rooms = dict[str, int](), dict[str, int](), dict[str, int](), dict[str, int]()
    for number, (name, row) in enumerate(layout.tables.items()):
        # Tables begin with a line of the processor's caches, so that what rows begin with is in one.
        bases[name] = head[layout.bases[name]] = at + number * stagger
        words_of[name] = share * layout.shares.get(name, 1) - number * stagger
        widths[name] = 1 if row is None else row.width + layout.dimensions.get(name, 0)
        room = layout.whole.get(name, -1)
        rooms[name] = head[layout.rooms[name]] = words_of[name] // widths[name] if room < 0 else room
        at += share * layout.shares.get(name, 1)
    for name, place in layout.widths.items():
        head[place] = widths[name]
    head[layout.none] = NONE
    return head, bases, words_of, widths, rooms


class Memory:
    """All tables of a layout in one array of integers, so that compiled functions take one argument."""

    layout: ClassVar[ArenaLayout]

    def __init__(self) -> None:
        self._at = 0
        layout = self.layout
        self.memory = np.frombuffer(_SPARE.pop(), dtype=np.int64) if _SPARE else _reserve()
        self._words = self.memory
        head, self._bases, self._words_of, widths, rooms = _divided(layout, len(self.memory))
        self.memory[: layout.header] = head
        self.widths, self._rooms = dict(widths), dict(rooms)
        self.used, self._views = dict.fromkeys(layout.tables, 0), dict[str, Any]()
        # Views of tables refer to this array, so it is gone when nobody looks at them any more.
        finalize(self.memory, _give_back, self.memory.base, layout, self.used, self.widths).atexit = False

    def set_dimensions(self, dimensions: int) -> None:
        """Room for blocks of so many dimensions; what was logged keeps its place in the row."""
        for name, each in self.layout.dimensions.items():
            width = self.layout.tables[name].width + each * dimensions  # type: ignore[union-attr]
            if width > self.widths[name]:
                filled = getattr(self, self.layout.filled[name]) if name in self.layout.filled else 0
                old = self.rows(name)[:filled].copy()
                self._set_width(name, width)
                self.rows(name)[:filled, : old.shape[1]] = old

    def _set_width(self, name: str, width: int) -> None:
        self.widths[name] = width
        if name in self.layout.widths:
            self.memory[self.layout.widths[name]] = width
        self.set_size(name, self._words_of[name] // width)

    def table(self, name: str) -> Any:
        """Return a table by its rows, or a list of words."""
        kind = self.layout.tables[name]
        return Words(self.rows(name), 0) if kind is None else Table(self, name, kind)

    def row_at(self, name: str, index: int) -> int:
        """Return where a row of a table begins."""
        return self._bases[name] + index * self.widths[name]

    def size(self, name: str) -> int:
        """Return how many rows a table has room for; of those in which rows are found by hashes, how many it
        has."""
        return self._rooms[name]

    def set_size(self, name: str, count: int) -> None:
        if count > self._words_of[name] // self.widths[name]:
            raise self.no_room(name)
        self._rooms[name] = self.memory[self.layout.rooms[name]] = count
        self._views.pop(name, None)

    def no_room(self, name: str) -> Exception:
        """Return the error of a table that is full; where the process was granted less, its memory is
        short."""
        return MemoryError(name)

    def most(self, name: str) -> int:
        """Return how many rows a table may have."""
        return self._words_of[name] // self.widths[name]

    @property
    def words(self) -> int:
        """How much of the memory is used."""
        return _words_used(self.memory, self.layout, self.used, self.widths)

    def rows(self, name: str) -> Any:
        """Return the rows of a table that are in use, as an array; of those that the engine takes, all."""
        found = self._views.get(name)
        if found is None:
            base, width = self._bases[name], self.widths[name]
            count = (
                self._rooms[name]
                if name in self.layout.filled or name in self.layout.whole
                else self.used[name]
            )
            found = self.memory[base : base + width * count]
            if width != 1:
                found = found.reshape(count, width)  # a view: the memory is contiguous
            self._views[name] = found
        return found

    def extend(self, name: str, count: int, fill: int | None = 0) -> int:
        """Add ``count`` rows, filled with one number (None: with what was there); return the first one."""
        at = self.used[name]
        if count:
            if at + count > self._rooms[name]:
                raise self.no_room(name)
            self.used[name] = at + count
            self._views.pop(name, None)
            if fill is not None:
                width, base = self.widths[name], self._bases[name]
                self.memory[base + width * at : base + width * (at + count)] = fill
        return at

    def append(self, name: str, values: Any) -> int:
        """Add a row, or several whose values come one after another; the number of the first."""
        at = self.extend(name, len(values) // self.widths[name], None)
        begin = self._bases[name] + self.widths[name] * at
        self.memory[begin : begin + len(values)] = values
        return at
