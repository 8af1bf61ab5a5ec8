"""The memory of the engine: all tables of `state` in one array of integers."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

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
    "todo": "todo_count", "ready": "ready_count",
}  # fmt: skip
"""Tables with room that nothing has touched yet: the total that says how far they are filled."""
ROOM = {
    "commands": 1 << 15, "nodes": 1 << 17, "pending": 1 << 16, "spans": 1 << 12, "events": 1 << 15,
    "todo": 1 << 15, "recorded_accesses": 1 << 14, "asked": 1, "memo": 256, "records": 16, "accesses": 16,
    "blocks": 0, "buckets": 0,
}  # fmt: skip
"""Rows of tables for which there is room from the beginning: what is not used costs nothing, but growing
does."""
_SOME = 500
"""The same of all other tables. (Were it a power of two, tables would take each other's place in caches.)"""
_SPARE: list[Any] = []
"""The memory of an arena that is gone: clearing the pages of a new one takes longer than most simulations."""
MOST_SPARE = 1 << 25
"""Numbers of memory that are kept at most."""


def _memory(words: int) -> Any:
    """Memory for so many numbers, whatever they are."""
    try:
        memory = _SPARE.pop()
    except IndexError:
        memory = None
    return np.empty(words, dtype=np.int64) if memory is None or len(memory) < words else memory


def _give_back(memory: Any) -> None:
    """Let another arena have memory that only the caller knows, unless somebody looks at a table in it."""
    if sys.getrefcount(memory) == 3 and max(map(len, _SPARE), default=0) < len(memory) <= MOST_SPARE:
        _SPARE[:] = [memory]


@cache
def _beginning(shift: int) -> tuple[Any, dict[str, int], dict[str, int], dict[str, int], int]:
    """An arena that nothing has been put into: what it begins with, how wide rows are, where tables begin,
    how many rows they have room for, and where the last one ends."""
    head, end = np.zeros(HEADER, dtype=np.int64), HEADER
    widths = {name: 1 if row is None else row.width + DIMENSIONS.get(name, 0) for name, row in TABLES.items()}
    for name, at in WIDTHS.items():
        head[at] = widths[name]
    bases, rooms = dict[str, int](), dict[str, int]()
    for name, width in widths.items():
        end += -(end + shift) % 8
        bases[name], rooms[name] = head[BASES[name]], head[ROOMS[name]] = end, ROOM.get(name, _SOME)
        end += width * rooms[name]
    head[[State.free_command, State.free_node, State.free_pending, State.free_span]] = NONE
    return head, widths, bases, rooms, end


class Arena(State, view=True):
    """All tables in one array of integers, so that compiled functions take one argument. Totals and tables
    are attributes (``arena.clock``, ``arena.units[3].now``); ``arena.rows("units")`` is an array."""

    def __init__(self) -> None:
        self._at = 0
        # Pages that nothing touches cost nothing; moving all tables because one grows does.
        self.memory = _memory(1 << 23)
        # Tables begin with a line of the processor's caches, so that what rows begin with is in one.
        self._shift = self.memory.ctypes.data // 8 % 8
        head, widths, bases, rooms, self._end = _beginning(self._shift)
        self.memory[:HEADER] = head
        self.used, self.widths = dict.fromkeys(TABLES, 0), dict(widths)
        # Where tables begin and how many rows they have room for, as in the memory; and those looked at.
        self._bases, self._rooms = dict(bases), dict(rooms)
        self._views: dict[str, Any] = {}
        self.rows("memo")[:] = NONE

    def __del__(self) -> None:
        self._views.clear()
        old, self.memory = self.memory, None
        _give_back(old)

    def set_dimensions(self, dimensions: int) -> None:
        """Room for blocks of so many dimensions; what was logged keeps its place in the row."""
        for name, each in DIMENSIONS.items():
            width = TABLES[name].width + each * dimensions  # type: ignore[union-attr]
            if width > self.widths[name]:
                count, filled = self.size(name), getattr(self, _FILLED[name]) if name in _FILLED else 0
                old = self.rows(name)[:filled].copy() if filled else np.zeros((0, 0), dtype=np.int64)
                self.widths[name] = self.memory[WIDTHS[name]] = width
                self.set_size(name, 0)
                self.reserve(name, count)
                self.rows(name)[:filled, : old.shape[1]] = old

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
        """How many rows a table has room for."""
        return self._rooms[name]

    def set_size(self, name: str, count: int) -> None:
        self._rooms[name] = self.memory[ROOMS[name]] = count
        self._views.pop(name, None)

    @property
    def words(self) -> int:
        """How much of the memory was ever used."""
        return self._end

    def rows(self, name: str) -> Any:
        """A table as an array of rows (valid until a table grows)."""
        found = self._views.get(name)
        if found is None:
            base, width = self._bases[name], self.widths[name]
            found = self.memory[base : base + width * self._rooms[name]]
            if width != 1:
                found = found.reshape(-1, width)
            self._views[name] = found
        return found

    def reserve(self, name: str, count: int) -> None:
        """Room for at least ``count`` rows."""
        size, width = self._rooms[name], self.widths[name]
        if count <= size:
            return
        room = max(count, 2 * size)
        if self._end + room * width + 8 > len(self.memory):
            self.make_room(room * width)
        self._end = self._move(name, self.memory, self._end)
        self._end += (room - size) * width
        self.set_size(name, room)

    def make_room(self, words: int) -> None:
        """Memory for tables of so many numbers in all: cheaper than growing several times. Tables that moved
        before have left holes, and most have rows that nothing has touched: neither is moved."""
        if self._end + words > len(self.memory):
            self._views.clear()
            room = self._end + words + 8 * len(TABLES)
            old, self.memory = self.memory, _memory(max(room, 2 * len(self.memory)))
            self._shift = self.memory.ctypes.data // 8 % 8
            self.memory[:HEADER] = old[:HEADER]
            end = HEADER
            for name in TABLES:
                end = self._move(name, old, end)
            self._end = end
            _give_back(old)

    def _move(self, name: str, old: Any, to: int) -> int:
        """A table's filled rows to another place, out of the same memory or an old one; where it ends."""
        width, size, at = self.widths[name], self._rooms[name], self._bases[name]
        to += -(to + self._shift) % 8
        if size:
            filled = width * (int(old[State.fields[_FILLED[name]].at]) if name in _FILLED else size)
            self.memory[to : to + filled] = old[at : at + filled]
        self._bases[name] = self.memory[BASES[name]] = to
        return to + width * size

    def extend(self, name: str, count: int, fill: int = 0) -> int:
        """``count`` more rows in use, filled with one number; where the first one is."""
        at = self.used[name]
        if count:
            self.reserve(name, at + count)
            self.used[name] = at + count
            width, base = self.widths[name], self._bases[name]
            self.memory[base + width * at : base + width * (at + count)] = fill
        return at

    def append(self, name: str, values: Any) -> int:
        """One more row in use; its number."""
        at = self.used[name]
        self.reserve(name, at + 1)
        self.used[name] = at + 1
        width, base = self.widths[name], self._bases[name]
        self.memory[base + width * at : base + width * (at + 1)] = values
        return at


def _table(name: str) -> property:
    return property(lambda arena: arena.table(name))


for _name, _field in State.fields.items():
    setattr(Arena, _name, _table(_name) if _name in TABLES else _field.of_row())
Arena._view = Arena
