"""The engine's state as arrays, and what their columns mean.

The engine (`engine.py`) runs uncompiled or as machine code over the same array, and stops and goes on at
any instruction; so everything it knows is here. All times are integer picoseconds; -1 stands for "none".
"""

from __future__ import annotations

from typing import Any

import numpy as np

NONE = -1
UNKNOWN = -1
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

# Columns of `code`: the kind, then up to eight numbers whose meaning depends on it (see table.py).
KIND, A, B, C, D, E, F, G, H = range(9)

# Columns of `unit`: one row per instance.
(
    NOW, PC, STATE, CAUSE, FRAME, STORE, HOLD, ENGINES, NUMBER, COPIES, SHARED, WAITS, SINCE, NEXT,
    LAUNCH, LIVE, LATEST, FLOW, OPEN, HOLDERS, FOLLOWERS,
) = range(21)  # fmt: skip
# States of an instance; a blocked one names what it waits for in WAITS. One that is DONE has issued
# everything, one that is OVER has finished it: its unit of the hardware is free.
READY, DATA, CREDIT, ANYDATA, FLAG, MEETING, HAZARD, QUEUED, DONE, OVER = range(10)

# Columns of `queue`: one row per queue that is used.
SENT, TAKEN, SLOTS, RING, SENDER, RECEIVER, VC, CREDITED, DATA_WAITER, CREDIT_WAITER, QCHANNEL, QMEMBER = (
    range(12)
)
# Columns of `ring`: the last messages of every queue, one row per slot.
ARRIVED, ARRIVED_BY, RETURNED, RETURNED_BY, SIZE = range(5)

# Columns of `command`: commands whose times are not all known yet.
(
    WHAT, WHO, AT, RECORD, READY_AT, WHY, NEED, WAITERS, LEFT_WAITERS, START, LEFT, FINISH, TAIL_OF,
    PATH, BYTES, FLOW_OF, ORDER, DELAY, MESSAGE_QUEUE, MESSAGE, BUSY, SERVER_OF, STAGE, HEAD, TAIL,
    QUEUED, PIECES_LEFT, TAILS_LEFT, PARENT_OF, ENTRIES, SHARED_NEXT, AMOUNT, REST, PIECE_BYTES,
) = range(34)  # fmt: skip

# Columns of `log`: unfinished accesses, in one list per instance and storage.
(
    LOG_NEXT, LOG_OWNER, LOG_WRITE, LOG_TIME, LOG_COMMAND, LOG_WHY, LOG_OF_COMMAND, LOG_DEAD,
    LOG_DIMENSIONS, LOG_BOUNDS,
) = range(10)  # fmt: skip

# Columns of `access`: what the command at hand touches.
A_STORAGE, A_OWNER, A_WRITE, A_DIMENSIONS, A_VISIBLE, A_TRACKED, A_BOUNDS = range(7)

# Columns of `path`, `stage` and `server`; rates are floats.
(
    FIRST_STAGE, STAGES, STARTUP, LATENCY, EXTRA, BEFORE, FIRST_SERVER, GRANULE, CONTENDED, LAST_SIZE,
    LAST_BUSY, RATE, DMA_RATE,
) = range(13)  # fmt: skip
STAGE_SERVER, STAGE_LATENCY, STAGE_SHARED, STAGE_SIZE, STAGE_BUSY, STAGE_RATE = range(6)
LANES, WIDTH = range(2)

# Columns of `region`.
MODE, TILE, DIMENSIONS, BOUNDS, OWNER, VISIBLE, TRACKED, OWN = range(8)
DECLARED, HANDLE = range(2)
# Columns of `tile`.
TILE_BASE, TILE_VERSIONS, TILE_VERSION_SLOT = range(3)
# Columns of `queue_of`, one row for each queue of a launch: 1 + its number, the instance that feeds it, how
# many messages were sent.
QUEUE_NUMBER, FED_BY, QUEUE_SENT = range(3)
# Columns of `channel`: first queue, members, slots, storage of the first slot, bytes of a slot.
FIRST_QUEUE, MEMBERS, CHANNEL_SLOTS, SLOT_STORAGE, SLOT_BYTES, CHANNEL_UNITS, CHANNEL_FIRST = range(7)
# Columns of `launch`: where its storages begin in `memory_of`, the first storage that is a slot, where its
# aliases, channels, flags and meetings begin; its storages, its instances, how many of those have something
# unfinished, when the last of that ends, and when it began.
(
    MEMORY_BASE, FIRST_SLOT, ALIASES, CHANNELS, FLAGS, MEETINGS, STORAGES, FIRST, INSTANCES, UNFINISHED,
    LAUNCH_LAST, BEGAN,
) = range(12)  # fmt: skip
# Columns of `flag`, `counter` and `meeting`.
FIRST_COUNTER, FLAG_MEMBERS, FLAG_UNITS = range(3)
COUNT, FLAG_WAITER, FLAG_NEEDS, FLAG_BY = range(4)
CAME, MEMBERS_OF, MEET_AT, MEET_WHY, MEET_CHAIN = range(5)

# Columns of `held`: how many names hold a slot, and which message lies in it.
HELD, HELD_QUEUE, HELD_MESSAGE = range(3)

# Columns of `record`.
(
    R_WHO, R_AT, R_START, R_END, R_CAUSE, R_BYTES, R_QUEUE, R_MESSAGE, R_ARRIVED, R_PATH, R_AUX, R_KIND,
    R_ENGINE,
) = range(13)  # fmt: skip

# Phases within one picosecond.
OVERS, BEGINS, SIGNALS, DECISIONS, REQUESTS, HOSTS = range(6)
PHASE = 1 << 58

# Expressions: a constant, an integer of the frame, or bytecode.
CONSTANT, SYMBOL, BYTECODE = range(3)
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
PUSH, LOAD, SELECT, LOOKUP, STOP = range(32, 37)

# Entries of `total`.
(
    LAST, READIES, EVENTS, FREE_COMMAND, LIVE_COMMANDS, FREE_NODE, LIVE_NODES, FREE_LOG, LIVE_LOGS,
    RECORDED, TODO, RECORDING, STEPS, JITTER, SEQUENCE, AUX, CLOCK, UNTIL,
    RECORD_BASE, AUX_BASE,
) = range(20)  # fmt: skip
TOTALS = 20
# Records and what they touch are numbered on and on; the first still in the arena has the number …_BASE.

# Why the engine returns to Python.
(
    FINISHED, BUDGET, GROW, ASK_QUEUE, ASK_PATH, ASK_BUSY, ASK_MEETING, ASK_MESSAGE, ASK_VALUE,
    ASK_DELAY, MISUSE, ENDED, PAUSED,
) = range(13)  # fmt: skip


# The tables of the arena: how wide a row is (0: it depends on the number of dimensions).
WIDTHS = {
    "code": 9,
    "expr": 2,
    "bytecode": 2,
    "constants": 1,
    "lists": 1,
    "region": 8,
    "tile": 3,
    "channel": 7,
    "alias": 1,
    "launch": 12,
    "memory_of": 2,
    "unit": 21,
    "frame": 1,
    "heads": 1,
    "held": 3,
    "tails": 4,
    "queue_of": 3,
    "queue": 12,
    "ring": 5,
    "flag": 3,
    "counter": 4,
    "meeting": 5,
    "path": 13,
    "stage": 6,
    "server": 2,
    "lane": 1,
    "command": 34,
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
# rows are (``W_UNIT`` …; of the last two it stands in the arena).
for _number, (_name, _width) in enumerate(WIDTHS.items()):
    globals()[f"T_{_name.upper()}"] = TOTALS + _number
    globals()[f"N_{_name.upper()}"] = TOTALS + len(WIDTHS) + _number
    globals()[f"W_{_name.upper()}"] = _width
W_LOG, W_ACCESS = range(TOTALS + 2 * len(WIDTHS), TOTALS + 2 * len(WIDTHS) + 2)
HEADER = W_ACCESS + 1


_BASES = {name: TOTALS + number for number, name in enumerate(WIDTHS)}
_SIZES = {name: TOTALS + len(WIDTHS) + number for number, name in enumerate(WIDTHS)}


class Arena:
    """All tables in one array of integers, so that compiled functions take one argument."""

    def __init__(self) -> None:
        # Pages that nothing touches cost nothing; moving all tables because one grows does.
        self.memory = np.zeros(1 << 22, dtype=np.int64)
        self._end = HEADER
        self.used = dict.fromkeys(WIDTHS, 0)
        self.widths = dict(WIDTHS)
        self.set_dimensions(1)

    def set_dimensions(self, dimensions: int) -> None:
        """Room for blocks of so many dimensions; what was logged keeps its place in the row."""
        for name, header, least in (("log", W_LOG, LOG_BOUNDS), ("access", W_ACCESS, A_BOUNDS)):
            width = least + 2 * dimensions
            if width > self.widths[name]:
                old = self.rows(name).copy() if self.widths[name] else np.zeros((0, width), dtype=np.int64)
                self.widths[name] = self.memory[header] = width
                count = len(old)
                self.set_size(name, 0)
                self.reserve(name, count)
                self.rows(name)[:count, : old.shape[1]] = old

    def size(self, name: str) -> int:
        """How many rows a table has room for."""
        return int(self.memory[_SIZES[name]])

    def set_size(self, name: str, count: int) -> None:
        self.memory[_SIZES[name]] = count

    def rows(self, name: str) -> Any:
        """A table as an array of rows (valid until a table grows)."""
        base, width = int(self.memory[_BASES[name]]), self.widths[name]
        flat = self.memory[base : base + width * self.size(name)]
        return flat if width == 1 else flat.reshape(-1, width)

    def reserve(self, name: str, count: int) -> None:
        """Room for at least ``count`` rows."""
        size, width = self.size(name), self.widths[name]
        if count <= size:
            return
        room = max(count, 2 * size)
        need = self._end + room * width
        self.make_room(room * width)
        old = int(self.memory[_BASES[name]])
        self.memory[self._end : self._end + size * width] = self.memory[old : old + size * width]
        self.memory[_BASES[name]] = self._end
        self.set_size(name, room)
        self._end = need

    def make_room(self, words: int) -> None:
        """Memory for tables of so many numbers in all: cheaper than growing several times."""
        need = self._end + words
        if need > len(self.memory):
            larger = np.zeros(max(need, 2 * len(self.memory)), dtype=np.int64)
            larger[: self._end] = self.memory[: self._end]
            self.memory = larger

    def extend(self, name: str, count: int, fill: int = 0) -> int:
        """``count`` more rows in use, filled with one number; where the first one is."""
        at = self.used[name]
        if at + count > self.memory[_SIZES[name]]:
            self.reserve(name, at + count)
        self.used[name] = at + count
        if count:
            self.rows(name)[at : at + count] = fill
        return at

    def put(self, name: str, row: int, values: Any) -> None:
        """Write one row."""
        at = int(self.memory[_BASES[name]]) + row * self.widths[name]
        self.memory[at : at + len(values)] = values

    def append(self, name: str, values: Any) -> int:
        """One more row in use; its number."""
        at = self.used[name]
        if at >= self.memory[_SIZES[name]]:
            self.reserve(name, at + 1)
        self.used[name] = at + 1
        self.put(name, at, values)
        return at
