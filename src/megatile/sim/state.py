"""The engine's state as arrays, and what their columns mean.

The engine (`engine/`) runs uncompiled or as machine code over the same array, and stops and goes on at
any instruction; so everything it knows is here. All times are integer picoseconds; -1 stands for "none".
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

NONE = -1
UNKNOWN = -1
GONE = -2
"""The tag of an answer in `memo` that holds no longer."""
LOW = (1 << 28) - 1
"""The bits of a number by which questions are spread over `memo`."""
BINDS = 256
"""Where carried names begin in the scratch array, after the stack of expressions."""
PIECES = 2048
MOST_PIECES = 1024
"""Message numbers are spread by this, so that the pieces of a message have numbers of their own."""
HOPS = 4096

# Kinds of instructions: control flow, then commands.
ENTER, TEST, AGAIN, BRANCH, JUMP, MERGE, FREE, END = range(8)
WORK, COPY, SEND, RECEIVE, ANY, READ, SIGNAL, WAIT, MEET = range(8, 17)
# What a record in flight is, besides the kinds of commands above.
INTO, RELEASE, PIECE, BEGIN = range(17, 21)

# Columns of `code`: the kind, up to eight numbers whose meaning depends on it (see table.py), and where the
# figure begins in `site` that each row of the stream's level needs here (NONE: it is in `memo`).
KIND, A, B, C, D, E, F, G, H, SITE = range(10)
DMA = 5
"""The first queue of the DMA engine among the queues of an instance; see table.py."""

# Columns of `unit`: one row per instance that is there at a time. The instances of a level with slots take
# turns in its rows; NUMBER counts the instances of the level, ACTOR those of all levels and launches, PLACE
# is the hardware unit (of a plan with one level: the unit). OPEN counts commands that have not ended, PARTS
# the stream and the instances below that have not; it waited in POOL for its turn, its rows of `below` begin
# at BELOW; CHAIN links those who wait for one thing. LATEST_BY and OVER_BY are the
# records of the times LATEST and OVER_AT.
(
    NOW, PC, STATE, CAUSE, FRAME, STORE, ENGINES, LAUNCH, LEVEL, NUMBER, ACTOR, SHARED, OPEN, LATEST,
    LATEST_BY, SINCE, WAITS, NEXT, CHAIN, NEEDS, HOLD, COPIES, FLOW, PLACE, PARENT, PARTS, OVER_AT, OVER_BY,
    POOL, BELOW, BELOWS, HOLDERS, FOLLOWERS,
) = range(33)  # fmt: skip
# States of an instance; a blocked one names what it waits for in WAITS. One that is DONE has issued
# everything, one that is OVER has finished it; one that is AHEAD has issued enough for now.
READY, DATA, CREDIT, ANYDATA, FLAG, MEETING, HAZARD, AHEAD, PENDING, DONE, OVER = range(11)

# Columns of `level`: the levels of every launch. PARENT_LEVEL is a row, PER_PARENT instances are in each of
# the parent's, PLACES lists the hardware units of those (NONE: the level has slots), BELOW_PARENT is how many
# such units are in each of the parent's, HARDWARE how many there are (0: the plan has one level), COUNT_OF
# how many instances; STREAM_OF lists their streams (NONE: all have ONE_STREAM, or none has one); then the
# first rows in `memory_of`, the number of the first instance, the first flow, when instances start, the
# queues of engines that each has, whether all instances are there from the beginning, the first row, and how
# long an instance takes to begin in a slot.
(
    PARENT_LEVEL, PER_PARENT, PLACES, BELOW_PARENT, HARDWARE, COUNT_OF, STREAM_OF, ONE_STREAM, MEMORY_BASE,
    FIRST_ACTOR, FIRST_FLOW, START_AT, LANES_OF, FIXED, FIRST_ROW, TO_BEGIN,
) = range(16)  # fmt: skip
# Columns of `stream`: the first instruction, the frame that instances begin with, its size.
FIRST_PC, TEMPLATE, FRAME_SIZE = range(3)
# Columns of `pool`: the slots of a level below one hardware unit. FREE_SEATS of its rows from FIRST_SEAT on
# (of ALL_SEATS) are free, a heap of them begins at SEATS_AT in `seats`; those who wait are a list of rows of
# `below`.
FIRST_SEAT, FREE_SEATS, SEATS_AT, FIRST_WAITING, LAST_WAITING, DUE, ALL_SEATS = range(7)
# Columns of `below`: the instances of one level in one instance: rows of `unit` from FIRST_BELOW on, or a
# pool, in which the next to begin is number NEXT_NUMBER and LEFT_OVER wait; PARENT_ROW is whose they are.
FIRST_BELOW, POOL_BELOW, COUNT_BELOW, NEXT_NUMBER, LEFT_OVER, NEXT_WAITING, PARENT_ROW = range(7)

# Columns of `queue`: one row per queue that is used. SENDER and RECEIVER are instances (ACTOR); VC and
# CREDITED hold for instances of the channel's own level if all of them are there from the beginning; QPATH is
# the path of messages out of memory QFROM.
(
    SENT, TAKEN, SLOTS, RING, SENDER, RECEIVER, VC, CREDITED, DATA_WAITER, CREDIT_WAITER, QCHANNEL, QMEMBER,
    QFROM, QPATH,
) = range(14)  # fmt: skip
# Columns of `ring`: the last messages of every queue, one row per slot.
ARRIVED, ARRIVED_BY, RETURNED, RETURNED_BY, SIZE = range(5)

# Columns of `command`: commands whose times are not all known yet; what all of them need comes first. The
# servers of PATH are counted from BASE.
(
    WHAT, WHO, READY_AT, WHY, NEED, WAITERS, LEFT_WAITERS, RECORD, AT, START, LEFT, FINISH, TAIL_OF, BUSY,
    SERVER_OF, ENTRIES, SHARED_LAST, SHARED_NEXT, DELAY, PARENT_OF, PIECES_LEFT, SPAN_READ, SPAN_WRITTEN,
    MESSAGE_QUEUE, PATH, BYTES, FLOW_OF, ORDER, BASE, HEAD, TAIL, STAGE, WAITED, MESSAGE, AMOUNT, REST,
    TAILS_LEFT, PIECE_BYTES,
) = range(38)  # fmt: skip

# Columns of `log`: unfinished accesses, in one list per instance and storage.
(
    LOG_NEXT, LOG_OWNER, LOG_WRITE, LOG_TIME, LOG_COMMAND, LOG_WHY, LOG_OF_COMMAND, LOG_DEAD,
    LOG_DIMENSIONS, LOG_BOUNDS,
) = range(10)  # fmt: skip

# Columns of `access`: what the command at hand touches.
A_STORAGE, A_OWNER, A_WRITE, A_DIMENSIONS, A_VISIBLE, A_TRACKED, A_BOUNDS = range(7)

ACCESS_BITS = 10
"""In records, the storage of an access stands above this bit; below, twice its dimensions, and whether it
writes."""
CLASSES = 31
CLASS = (1 << CLASSES) - 1
"""The number of a path: its row, and from this bit on the server from which its stages count theirs."""
MOVERS = 1 << 20
"""More levels than there are: in questions for paths the DMA engine counts from here on."""
# Columns of `path`, `stage` and `server`; rates are floats. STAGE_SHARED: NONE where a stage has no server.
(
    FIRST_STAGE, STAGES, STARTUP, LATENCY, EXTRA, BEFORE, FIRST_SERVER, GRANULE, CONTENDED, LAST_SIZE,
    LAST_BUSY, RATE, DMA_RATE, READ_CACHE, WRITE_CACHE,
) = range(15)  # fmt: skip
STAGE_SERVER, STAGE_LATENCY, STAGE_SHARED, STAGE_SIZE, STAGE_BUSY, STAGE_RATE = range(6)
LANES, WIDTH = range(2)
# Columns of `cache`: how many blocks it holds, how many are there, the one used last and the one used longest
# ago, whether it writes back; what is behind it (a cache, a server, latency, rate); what a lookup misses (a
# transient sum of bytes, and the blocks it touched); then counts: blocks hit and missed, bytes served,
# written, filled and written behind, and how long that took there.
(
    CACHE_BLOCKS, CACHE_USED, NEWEST, OLDEST, WRITES_BACK, BEHIND, BEHIND_SERVER, BEHIND_LATENCY, BEHIND_RATE,
    MISSING, TOUCHED, HITS, MISSES, CACHE_READ, CACHE_WRITTEN, CACHE_FILLED, CACHE_EVICTED, CACHE_SPENT,
) = range(18)  # fmt: skip
# Columns of `block`: the cache, the storage and the number of the block in it, its neighbours in order of
# use, when it is filled, whether it must be written behind, its bytes, the next in its bucket.
BLOCK_CACHE, BLOCK_KEY, BLOCK_INDEX, NEWER, OLDER, FILLED_AT, DIRTY, BLOCK_BYTES, BLOCK_CHAIN = range(9)
# Columns of `span`: the blocks of a storage that a copy touches: storage, bytes of each, dimensions, then for
# each dimension the first, how many, and by how much the block's number grows.
SPAN_NEXT, SPAN_KEY, SPAN_BYTES, SPAN_DIMENSIONS, SPAN_BOUNDS = range(5)

# Columns of `region`.
MODE, TILE, DIMENSIONS, BOUNDS, OWNER, VISIBLE, TRACKED, OWN = range(8)
# Columns of `memory_of`: of every storage, as each level sees it: its memory, whether that is its own, the
# level (row in the plan) of whose instances it is, how many of its own are in one of those (0: none), the
# owner of each of those (NONE: itself) and the first of them that has each owner; the list of its blocks in
# caches (NONE: there is none before it): dimensions, bytes of a block, what to add to the storage's number if
# it outlives its launch (else 0), the block's shape, how many there are.
MEMORY, PRIVATE, STORAGE_LEVEL, STORAGE_PER, OWNERS, FIRST_OWNERS, OWNER_COUNT, BRICKS = range(8)
DECLARED, HANDLE = range(2)
# Columns of `tile`.
TILE_BASE, TILE_VERSIONS, TILE_VERSION_SLOT = range(3)
# Columns of `queue_of`, one row for each queue of a launch: 1 + its number, the instance that feeds it, how
# many messages were sent.
QUEUE_NUMBER, FED_BY, QUEUE_SENT = range(3)
# Columns of `channel`: first queue, members, slots, storage of the first slot, bytes of a slot.
(
    FIRST_QUEUE, MEMBERS, CHANNEL_SLOTS, SLOT_STORAGE, SLOT_BYTES, CHANNEL_UNITS, CHANNEL_FIRST,
    CHANNEL_LEVEL,
) = range(8)  # fmt: skip
# Columns of `launch`: the first storage that is a slot, where its aliases, channels, flags, meetings and
# levels begin; its storages, its rows of `unit`, how many instances and commands are unfinished, when the
# last of that ends, when it began, what waits for slots from the beginning (rows of `below`), and the number
# of its run, which tells its blocks in caches from those of others.
(
    FIRST_SLOT, ALIASES, CHANNELS, FLAGS, MEETINGS, LEVELS, STORAGES, FIRST, ROWS, UNFINISHED, LAUNCH_LAST,
    BEGAN, FIRST_ROOT, ROOTS, SERIAL,
) = range(15)  # fmt: skip
# Columns of `flag`, `counter` and `meeting`.
FIRST_COUNTER, FLAG_MEMBERS, FLAG_UNITS, FLAG_LEVEL = range(4)
COUNT, FLAG_WAITER, FLAG_BY = range(3)
CAME, MEMBERS_OF, MEET_AT, MEET_WHY, MEET_CHAIN = range(5)

# Columns of `held`: how many names hold a slot, which message lies in it, how long its credit travels.
HELD, HELD_QUEUE, HELD_MESSAGE, HELD_CREDIT = range(4)

# Columns of `record`.
(
    R_WHO, R_AT, R_START, R_END, R_CAUSE, R_BYTES, R_QUEUE, R_MESSAGE, R_ARRIVED, R_PATH, R_AUX, R_KIND,
    R_ENGINE,
) = range(13)  # fmt: skip

# Phases within one picosecond.
OVERS, BEGINS, SIGNALS, DISPATCH, DECISIONS, REQUESTS, HOSTS = range(7)
PHASE = 1 << 58

# Expressions: a constant, an integer of the frame, one plus a constant (both in a row of bytecode: SUM), or
# bytecode. The value of KEPT bytecode stays in the frame
# as long as no loop goes on whose index it needs: its first row names the place of the value (beside it the
# round for which it holds) and the place that counts the rounds of the loop.
CONSTANT, SYMBOL, BYTECODE, KEPT, SUM = range(5)
OPERATORS = (
    "+",
    "-",
    "*",
    "//",
    "%",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "<",
    "<=",
    ">",
    ">=",
    "==",
    "!=",
    "min",
    "max",
)
PUSH, LOAD, SELECT, LOOKUP, STOP, NESTED = range(32, 38)

# Entries of `total`.
(
    LAST, READIES, EVENTS, FREE_COMMAND, LIVE_COMMANDS, FREE_NODE, LIVE_NODES, FREE_LOG, LIVE_LOGS,
    RECORDED, TODO, RECORDING, STEPS, JITTER, SEQUENCE, AUX, CLOCK, UNTIL, RECORD_BASE, AUX_BASE, SEATS,
    FREE_SPAN, LIVE_SPANS, BLOCKS, MOST_OPEN, TOP_COMMAND, TOP_NODE, TOP_LOG, TOP_SPAN, SPARE,
) = range(30)  # fmt: skip
TOTALS = 30
# Rows that are used again are in a list from FREE_… on; those from TOP_… on were never used.
# Records and what they touch are numbered on and on; the first still in the arena has the number …_BASE.

SELDOM = 16
"""Instructions or events after which it is looked again whether tables have room, if there is plenty."""
# What issuing a command gives, if not a reason to return to Python.
GO_ON, HELD_UP = 0, -1

# Why the engine returns to Python.
(
    FINISHED, BUDGET, GROW, ASK_QUEUE, ASK_PATH, ASK_BUSY, ASK_MEETING, ASK_MESSAGE, ASK_VALUE,
    ASK_DELAY, ASK_LANE, ASK_CREDIT, ASK_ROUTE, MISUSE, ENDED, PAUSED,
) = range(16)  # fmt: skip


# The tables of the arena: how wide a row is (0: it depends on the number of dimensions).
WIDTHS = {
    "code": 10,
    "expr": 2,
    "bytecode": 2,
    "constants": 1,
    "lists": 1,
    "region": 8,
    "tile": 3,
    "channel": 8,
    "alias": 1,
    "launch": 15,
    "level": 16,
    "stream": 3,
    "memory_of": 8,
    "unit": 33,
    "pool": 7,
    "seats": 1,
    "below": 7,
    "place": 1,
    "frame": 1,
    "heads": 1,
    "held": 4,
    "tails": 4,
    "queue_of": 3,
    "queue": 14,
    "ring": 5,
    "flag": 4,
    "counter": 3,
    "meeting": 5,
    "path": 15,
    "stage": 6,
    "server": 2,
    "cache": 18,
    "block": 9,
    "bucket": 1,
    "span": 0,
    "lane": 1,
    "site": 1,
    "command": 40,  # 38, and two so that rows begin like the table
    "log": 0,
    "node": 2,
    "heap": 4,
    "ready": 1,
    "todo": 1,
    "memo": 6,
    "record": 13,
    "aux": 1,
    "ask": 8,
    "access": 0,
    "scratch": 1,
}
# Where each begins in the arena (``T_UNIT`` …), how many rows it has room for (``N_UNIT`` …) and how wide its
# rows are (``W_UNIT`` …; of those that depend on dimensions it stands in the arena).
for _number, (_name, _width) in enumerate(WIDTHS.items()):
    globals()[f"T_{_name.upper()}"] = TOTALS + _number
    globals()[f"N_{_name.upper()}"] = TOTALS + len(WIDTHS) + _number
    globals()[f"W_{_name.upper()}"] = _width
W_LOG, W_ACCESS, W_SPAN = range(TOTALS + 2 * len(WIDTHS), TOTALS + 2 * len(WIDTHS) + 3)
HEADER = W_SPAN + 1


_FILLED = {
    "command": TOP_COMMAND, "node": TOP_NODE, "log": TOP_LOG, "span": TOP_SPAN, "record": RECORDED,
    "aux": AUX, "heap": EVENTS, "todo": TODO, "ready": READIES,
}  # fmt: skip
"""Tables with room that nothing has touched yet: where it stands how far they are filled."""
ROOM = {
    "command": 1 << 15, "node": 1 << 17, "log": 1 << 16, "span": 1 << 12, "heap": 1 << 15, "todo": 1 << 15,
    "aux": 1 << 14, "ask": 1, "memo": 256, "record": 16, "access": 16, "block": 0, "bucket": 0,
}  # fmt: skip
"""Rows of tables for which there is room from the beginning: what is not used costs nothing, but growing
does."""
_SOME = 500
"""The same of all other tables. (Were it a power of two, tables would take each other's place in caches.)"""
_BASES = {name: TOTALS + number for number, name in enumerate(WIDTHS)}
_SIZES = {name: TOTALS + len(WIDTHS) + number for number, name in enumerate(WIDTHS)}


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


_DIMENSIONS = (
    ("log", W_LOG, LOG_BOUNDS, 2),
    ("access", W_ACCESS, A_BOUNDS, 2),
    ("span", W_SPAN, SPAN_BOUNDS, 3),
)
"""Tables whose rows have room for bounds: where their width stands, what is before the bounds, and how much
each dimension takes."""


@cache
def _beginning(shift: int) -> tuple[Any, dict[str, int], dict[str, int], dict[str, int], int]:
    """An arena that nothing has been put into: what it begins with, how wide rows are, where tables begin,
    how many rows they have room for, and where the last one ends."""
    head, end = np.zeros(HEADER, dtype=np.int64), HEADER
    widths = WIDTHS | {name: least + each for name, _, least, each in _DIMENSIONS}
    for name, at, _, _ in _DIMENSIONS:
        head[at] = widths[name]
    bases, rooms = dict[str, int](), dict[str, int]()
    for name, width in widths.items():
        end += -(end + shift) % 8
        bases[name], rooms[name] = head[_BASES[name]], head[_SIZES[name]] = end, ROOM.get(name, _SOME)
        end += width * rooms[name]
    head[[FREE_COMMAND, FREE_NODE, FREE_LOG, FREE_SPAN]] = NONE
    return head, widths, bases, rooms, end


class Arena:
    """All tables in one array of integers, so that compiled functions take one argument."""

    def __init__(self) -> None:
        # Pages that nothing touches cost nothing; moving all tables because one grows does.
        self.memory = _memory(1 << 23)
        # Tables begin with a line of the processor's caches, so that what rows begin with is in one.
        self._shift = self.memory.ctypes.data // 8 % 8
        head, widths, bases, rooms, self._end = _beginning(self._shift)
        self.memory[:HEADER] = head
        self.used, self.widths = dict.fromkeys(WIDTHS, 0), dict(widths)
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
        for name, header, least, each in _DIMENSIONS:
            width = least + each * dimensions
            if width > self.widths[name]:
                count, filled = self.size(name), int(self.memory[_FILLED[name]]) if name in _FILLED else 0
                old = self.rows(name)[:filled].copy() if filled else np.zeros((0, 0), dtype=np.int64)
                self.widths[name] = self.memory[header] = width
                self.set_size(name, 0)
                self.reserve(name, count)
                self.rows(name)[:filled, : old.shape[1]] = old

    def size(self, name: str) -> int:
        """How many rows a table has room for."""
        return self._rooms[name]

    def set_size(self, name: str, count: int) -> None:
        self._rooms[name] = self.memory[_SIZES[name]] = count
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
            room = self._end + words + 8 * len(WIDTHS)
            old, self.memory = self.memory, _memory(max(room, 2 * len(self.memory)))
            self._shift = self.memory.ctypes.data // 8 % 8
            self.memory[:HEADER] = old[:HEADER]
            end = HEADER
            for name in WIDTHS:
                end = self._move(name, old, end)
            self._end = end
            _give_back(old)

    def _move(self, name: str, old: Any, to: int) -> int:
        """A table's filled rows to another place, out of the same memory or an old one; where it ends."""
        width, size, at = self.widths[name], self._rooms[name], self._bases[name]
        to += -(to + self._shift) % 8
        if size:
            filled = width * (int(old[_FILLED[name]]) if name in _FILLED else size)
            self.memory[to : to + filled] = old[at : at + filled]
        self._bases[name] = self.memory[_BASES[name]] = to
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
