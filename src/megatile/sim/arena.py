"""The memory of the engine: all tables of `state` in one array of integers."""

from __future__ import annotations

import mmap
import sys
from operator import mul
from typing import Any
from weakref import finalize

import numpy as np

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

from megatile.core.cached import cached
from megatile.core.limits import OutOfMemory
from megatile.sim import state
from megatile.sim.rows import NONE, Row, Table, Words
from megatile.sim.state import State

TABLES: dict[str, type[Row] | None] = {
    name: None if field.kind == "Words" else getattr(state, field.kind[len("Table[") : -1])
    for name, field in State.fields.items()
    if field.kind != "int"
}
"""What the rows of each table are (None: single words)."""
BASES = {name: State.fields[name].at for name in TABLES}
"""Where it stands at the head of the array where a table begins; ``ROOMS``: for how many rows it has room."""
ROOMS = {name: at + len(TABLES) for name, at in BASES.items()}
DIMENSIONS = {"pending": 2, "accesses": 2, "spans": 3}
"""Tables whose rows end with bounds: how many words each dimension takes."""
WIDTHS = {name: len(State.fields) + len(TABLES) + number for number, name in enumerate(DIMENSIONS)}
"""Where it stands how wide their rows are."""
HEADER = len(State.fields) + len(TABLES) + len(DIMENSIONS)
_FILLED = {
    "commands": "top_command", "nodes": "top_node", "pending": "top_pending", "spans": "top_span",
    "records": "recorded", "recorded_accesses": "recorded_words", "events": "event_count",
    "todo": "todo_count", "ready": "ready_count", "blocks": "block_count",
}  # fmt: skip
"""Tables whose rows the engine takes: the total that says how many."""
_TOTALS = [getattr(State, total) for total in _FILLED.values()]
"""Where those totals are."""
_NOT_COUNTED = ("answers", "buckets", "asked", "accesses", "scratch")
"""Tables that have all their rows from the beginning."""
RESERVED_BYTES = 1 << 37
"""Address space of an arena, of which only what is used takes memory; halved until it is granted."""
ADDRESS_SPACE = 1 << 46
"""Address space of all arenas: the more of it they have, the less a new one is given."""
_RESERVED: dict[int, int] = {}
"""What they have."""
LEAST_BYTES = 1 << 28
"""Memory of an arena where no such address space is granted."""
SHARES = {"records": 24, "recorded_accesses": 24}
"""How many shares of it a table has; others have one."""
ANSWER_ROOM = 256
MAX_SPARE_BYTES = 1 << 28
"""Memory that a pooled arena keeps."""
_STAGGER = 552
"""Words by which tables begin later than the one before in their shares: in processor caches they would take
each other's place otherwise."""
_SPARE: list[Any] = []
"""The address space of an arena that is gone: clearing the pages of a new one takes longer than most
simulations."""


def _limit() -> int:
    """How much address space this process may have."""
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


def _give_back(space: Any, used: dict[str, int], widths: dict[str, int]) -> None:
    """Let another arena have the address space of one that is gone, with all views of its tables."""
    if _SPARE or memoryview(space).nbytes < LEAST_BYTES:
        return
    words = _words_used(np.frombuffer(space, dtype=np.int64, count=HEADER), used, widths)
    if 8 * words > MAX_SPARE_BYTES and isinstance(space, mmap.mmap):
        space.madvise(mmap.MADV_DONTNEED)
    _SPARE.append(space)


def _words_used(head: Any, used: dict[str, int], widths: dict[str, int]) -> int:
    """Return how much of an arena's memory is used, which begins with ``head``."""
    words = sum(map(mul, used.values(), widths.values()))
    filled = head[_TOTALS].tolist()
    return words + sum(
        max(0, total - used[name]) * widths[name] for name, total in zip(_FILLED, filled, strict=True)
    )


@cached()
def _layout(words: int) -> tuple[Any, dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
    """What memory of so many words begins with; of every table where it begins, the words of its share, how
    wide rows are and for how many there is room."""
    head = np.zeros(HEADER, dtype=np.int64)
    share = words // (len(TABLES) + 1 + sum(SHARES.values())) // 8 * 8
    stagger, at = min(_STAGGER, share // 64 // 8 * 8), share
    bases, words_of, widths, rooms = dict[str, int](), dict[str, int](), dict[str, int](), dict[str, int]()
    for number, (name, row) in enumerate(TABLES.items()):
        # Tables begin with a line of the processor's caches, so that what rows begin with is in one.
        bases[name] = head[BASES[name]] = at + number * stagger
        words_of[name] = share * SHARES.get(name, 1) - number * stagger
        widths[name] = 1 if row is None else row.width + DIMENSIONS.get(name, 0)
        rooms[name] = head[ROOMS[name]] = {"answers": ANSWER_ROOM, "buckets": 0}.get(
            name, words_of[name] // widths[name]
        )
        at += share * SHARES.get(name, 1)
    for name, place in WIDTHS.items():
        head[place] = widths[name]
    head[[State.free_command, State.free_node, State.free_pending, State.free_span, State.full]] = NONE
    return head, bases, words_of, widths, rooms


class TableFull(OutOfMemory):
    """A table of the engine has no room for another row."""

    def __init__(self, name: str, rows: int) -> None:
        recorded = name in ("records", "recorded_accesses")
        super().__init__(
            f"the simulation needs more than {rows:,} rows in its table '{name}'",
            advice="simulate with record=False" if recorded else "simulate fewer units or a smaller problem",
        )


class Arena(State, view=True):
    """All tables in one array of integers, so that compiled functions take one argument. Totals and tables
    are attributes (``arena.clock``, ``arena.units[3].now``); ``arena.rows("units")`` is an array."""

    def __init__(self) -> None:
        self._at = 0
        self.memory = np.frombuffer(_SPARE.pop(), dtype=np.int64) if _SPARE else _reserve()
        head, self._bases, self._words_of, widths, rooms = _layout(len(self.memory))
        self.memory[:HEADER] = head
        self.widths, self._rooms = dict(widths), dict(rooms)
        self.used, self._views = dict.fromkeys(TABLES, 0), dict[str, Any]()
        self.rows("answers")[:] = NONE
        # Views of tables refer to this array, so it is gone when nobody looks at them any more.
        finalize(self.memory, _give_back, self.memory.base, self.used, self.widths).atexit = False

    def set_dimensions(self, dimensions: int) -> None:
        """Room for blocks of so many dimensions; what was logged keeps its place in the row."""
        for name, each in DIMENSIONS.items():
            width = TABLES[name].width + each * dimensions  # type: ignore[union-attr]
            if width > self.widths[name]:
                filled = getattr(self, _FILLED[name]) if name in _FILLED else 0
                old = self.rows(name)[:filled].copy()
                self._set_width(name, width)
                self.rows(name)[:filled, : old.shape[1]] = old

    def _set_width(self, name: str, width: int) -> None:
        self.widths[name] = width
        if name in WIDTHS:
            self.memory[WIDTHS[name]] = width
        self.set_size(name, self._words_of[name] // width)

    @property
    def _words(self) -> Any:
        return self.memory

    def table(self, name: str) -> Any:
        """A table by its rows, or a list of words."""
        kind = TABLES[name]
        return Words(self.rows(name), 0) if kind is None else Table(self, name, kind)

    def row_at(self, name: str, index: int) -> int:
        """Where a row of a table begins."""
        return self._bases[name] + index * self.widths[name]

    def size(self, name: str) -> int:
        """How many rows a table has room for; of those in which rows are found by hashes, how many it has."""
        return self._rooms[name]

    def set_size(self, name: str, count: int) -> None:
        if count > self._words_of[name] // self.widths[name]:
            raise self.no_room(name)
        self._rooms[name] = self.memory[ROOMS[name]] = count
        self._views.pop(name, None)

    def no_room(self, name: str) -> Exception:
        """The error of a table that is full; where the process was granted less, its memory is short."""
        rows = self._words_of[name] // self.widths[name]
        return MemoryError(name) if self.memory.nbytes < RESERVED_BYTES else TableFull(name, rows)

    @property
    def words(self) -> int:
        """How much of the memory is used."""
        return _words_used(self.memory, self.used, self.widths)

    def rows(self, name: str) -> Any:
        """The rows of a table that are in use, as an array; of those that the engine takes, all."""
        found = self._views.get(name)
        if found is None:
            base, width = self._bases[name], self.widths[name]
            count = self._rooms[name] if name in _FILLED or name in _NOT_COUNTED else self.used[name]
            found = self.memory[base : base + width * count]
            if width != 1:
                found = found.reshape(-1, width)
            self._views[name] = found
        return found

    def extend(self, name: str, count: int, fill: int = 0) -> int:
        """``count`` more rows in use, filled with one number; where the first one is."""
        at = self.used[name]
        if count:
            if at + count > self._rooms[name]:
                raise self.no_room(name)
            self.used[name] = at + count
            self._views.pop(name, None)
            width, base = self.widths[name], self._bases[name]
            self.memory[base + width * at : base + width * (at + count)] = fill
        return at

    def append(self, name: str, values: Any) -> int:
        """One more row in use; its number."""
        at = self.extend(name, 1)
        self.rows(name)[at] = values
        return at


def _table(name: str) -> property:
    return property(lambda arena: arena.table(name))


for _name, _field in State.fields.items():
    setattr(Arena, _name, _table(_name) if _name in TABLES else _field.of_row())
Arena._view = Arena
