"""Following a stream's control flow: from parametric statements to the commands that are really issued.

A `Row` is one issued command for all units of a stream at once: every field is an int where the units
agree and an array over the units where they differ; ``mask`` says who takes part (None: all). The same
code follows a single unit (``unit`` is then an int, and every field too), which is needed where the
course depends on a receive-from-any. Nothing here knows time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.expr import Const, Expr, symbols
from megatile.sim.slots import SlotHolds
from megatile.sim.storage import Storages

Number = Any  # an int, or an int64 array over the units of the cohort
Mask = Any  # None for all units, else a bool array


class Row:
    """One issued command. Which fields are set depends on the statement's type."""

    __slots__ = (
        "accesses",
        "count",
        "flops",
        "group",
        "mask",
        "member",
        "nbytes",
        "number",
        "queue",
        "slot",
        "statement",
        "to",
        "value",
    )

    def __init__(self, statement: Any, mask: Mask) -> None:
        self.statement = statement
        self.mask = mask
        self.accesses: tuple[Access, ...] = ()
        self.flops: Number = 0
        self.nbytes: Number = 0
        self.to: Number = 0
        self.member: Number = 0
        self.queue: Number = 0
        """The queue's number in its channel: receiving unit * members + member."""
        self.number: Number = 0
        """Which message of the queue this is, from 0."""
        self.slot: Number = 0
        """The storage of the message, at its receiver."""
        self.value: Number = 0
        self.count: Number = 0
        self.group: Number = 0


@dataclass(frozen=True)
class Access:
    """A block of one storage that a command reads or writes.

    ``storage`` is a number of `Storages`; ``owner`` is None for the unit's own copy; ``bounds`` are
    (start, extent) per dimension, empty for all of it.
    """

    storage: Number
    owner: Number
    bounds: tuple[tuple[Number, Number], ...]
    write: bool
    tile: str
    shared: bool = False


class Released:
    """The statement of rows that return credits: names ended and their slots are no longer held."""

    place = None


RELEASED = Released()
Walk = Generator[Row, Any, None]


@dataclass
class Cohort:
    """Units that are followed together: their numbers, their names' meanings, their counters."""

    plan: pm.Plan
    storages: Storages
    unit: Number
    scalars: Callable[[pm.ReadScalar, Number, Number], Number]
    env: dict[str, Number] = field(default_factory=dict)
    names: dict[str, Number] = field(default_factory=dict)
    """Handles: name -> storage number (slots, and captured versions of declared tiles)."""
    versions: dict[str, Number] = field(default_factory=dict)
    reads: dict[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env["unit"] = self.unit
        self.vector = isinstance(self.unit, np.ndarray)
        self.size = len(self.unit) if self.vector else 1
        self.versions.update({tile.name: 0 for tile in self.plan.tiles})
        self.channels = {c.name: c for c in self.plan.channels}
        self.holds = SlotHolds(self.storages, self.size)
        self.sent = {c.name: QueueCounts(self.plan.units * c.members) for c in self.plan.channels}
        self.taken = {c.name: QueueCounts(self.plan.units * c.members) for c in self.plan.channels}
        self.met: dict[str, Number] = {g.name: 0 for g in self.plan.groups}
        self._compiled: dict[int, tuple[Expr, Callable[..., Any]]] = {}
        self._steady: dict[int, Number] = {}
        self._queues: dict[int, tuple[bool, Number]] = {}
        self._same_queues: dict[tuple[str, bytes], Number] = {}

    # values

    def value(self, expr: Expr) -> Number:
        """An expression's value; what depends on the unit alone is worked out once."""
        if isinstance(expr, Const):
            return expr.value
        key = id(expr)
        steady = self._steady.get(key)
        if steady is not None:
            return steady
        entry = self._compiled.get(key)
        if entry is None:
            entry = self._compiled[key] = (expr, expr.compile())
            if symbols(expr) <= {"unit"}:
                self._steady[key] = entry[1](self.env)
                return self._steady[key]
        return entry[1](self.env)

    def walk(self) -> Walk:
        """All rows of the cohort, in issue order."""
        stream = self._stream()
        yield from self.block(stream.body, None)

    def _stream(self) -> pm.Stream:
        first = int(self.unit[0]) if self.vector else self.unit
        for stream in self.plan.streams:
            if any(first in range(*run) for run in stream.units):
                return stream
        return pm.Stream(units=(), body=())

    # control flow

    def block(self, body: tuple[Any, ...], mask: Mask) -> Walk:
        for statement in body:
            rule = _RULES.get(type(statement))
            if rule is None:
                raise pm.PlanError(f"{type(statement).__name__} cannot be simulated", place=statement.place)
            yield from rule(self, statement, mask)

    def scoped(self, body: tuple[Any, ...], mask: Mask, keep: Callable[[], Any]) -> Walk:
        """A body whose own names end with it; ``keep`` binds what lives on before they do."""
        before_names, before_env = set(self.names), set(self.env)
        yield from self.block(body, mask)
        keep()
        own = [name for name in self.names if name not in before_names]
        if own:
            yield from self.release(own, mask)
            for name in own:
                self.names.pop(name, None)
        if len(self.env) > len(before_env):
            for name in [n for n in self.env if n not in before_env]:
                del self.env[name]

    def release(self, names: list[str], mask: Mask) -> Walk:
        """End names; rows return the credits of slots that nobody holds any more."""
        for name in names:
            storage = self.names.get(name)
            if storage is None:
                continue
            yield from _released(self.holds.drop(storage, mask))

    def end(self, names: Iterable[str], mask: Mask) -> None:
        """Forget names; where only some units do, the others keep them."""
        for name in names:
            if mask is None:
                self.names.pop(name, None)
            elif name in self.names:
                self.names[name] = np.where(mask, -1, self.names[name])

    def bind(self, name: str, storage: Number, mask: Mask) -> None:
        self.holds.hold(storage, mask)
        self.names[name] = self.choose(mask, storage, self.names.get(name, storage))

    def choose(self, mask: Mask, new: Number, old: Number) -> Number:
        return new if mask is None else np.where(mask, new, old)

    # storage

    def storage_of(self, name: str) -> Number:
        if name in self.names:
            return self.names[name]
        version = self.versions[name]
        return self.storages.buffer(name, version)

    def begin_version(self, name: str, mask: Mask) -> None:
        version = self.versions[name]
        self.versions[name] = self.choose(mask, version + 1, version)

    def access(self, region: pm.Region, write: bool) -> Access:
        storage = self.storage_of(region.tile)
        tile = self.storages.tile(region.tile)
        owner: Number = None
        shared = False
        if region.at is not None:
            owner, shared = self.value(region.at), True
        elif tile is not None and tile.shared and region.tile not in self.names:
            owner, shared = self.value(tile.owner), True
        bounds = []
        for start, extent in zip(region.start, region.shape, strict=True):
            bounds.append((self.value(start), self.value(extent)))
        return Access(storage, owner, tuple(bounds), write, region.tile, shared)


class QueueCounts:
    """How many messages each queue of a channel has seen; one int while all units go in step."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._common: tuple[Any, int] | None = None
        self._each: np.ndarray | dict[int, int] | None = None

    def next(self, queue: Number, mask: Mask) -> Number:
        """The number of the next message of ``queue`` (an int, or one queue per unit), counted up."""
        array = isinstance(queue, np.ndarray)
        if not array and mask is None and self._common is None and not isinstance(self._each, np.ndarray):
            if self._each is None:
                self._each = {}
            number = self._each.get(queue, 0)
            self._each[queue] = number + 1
            return number
        in_step = array and mask is None and self._each is None
        if in_step and (self._common is None or self._common[0] is queue):
            number = self._common[1] if self._common else 0
            self._common = (queue, number + 1)
            return number
        each = self._spread()
        if mask is not None:
            queue = np.where(mask, queue, 0)  # who takes no part may name a queue that does not exist
        numbers = each[queue]
        if mask is None:
            each[queue] = numbers + 1
        else:
            active = queue[mask]
            each[active] = numbers[mask] + 1
        return numbers

    def peek(self, queue: int) -> int:
        """The number that `next` would give (for one unit)."""
        return self._each.get(queue, 0) if isinstance(self._each, dict) else 0

    def _spread(self) -> np.ndarray:
        if not isinstance(self._each, np.ndarray):
            each = np.zeros(self._queues, dtype=np.int64)
            for queue, number in (self._each or {}).items():
                each[queue] = number
            if self._common is not None:
                each[self._common[0]] = self._common[1]
            self._each = each
        return self._each


def _released(slots: Iterable[tuple[Number, Mask]]) -> Walk:
    for slot, who in slots:
        row = Row(RELEASED, who)
        row.slot = slot
        yield row


# --- rules: one per statement type ---------------------------------------------------------------------


def _compute(c: Cohort, s: pm.Compute, mask: Mask) -> Walk:
    row = Row(s, mask)
    reads = [c.access(r, False) for r in s.reads]
    if s.fresh:
        c.begin_version(s.write.tile, mask)
    elif s.reads and s.write is s.reads[0]:
        # In place: the same block is read and written, so it is worked out once.
        row.accesses = (*reads, replace(reads[0], write=True))
        row.flops, row.nbytes = c.value(s.work.flops), c.value(s.work.bytes)
        yield row
        return
    row.accesses = (*reads, c.access(s.write, True))
    row.flops, row.nbytes = c.value(s.work.flops), c.value(s.work.bytes)
    yield row


def _send(c: Cohort, s: pm.Send, mask: Mask) -> Walk:
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to, row.member = c.value(s.to), c.value(s.member)
    row.queue = _queue(c, s, channel, row.to, row.member)
    row.number = c.sent[s.channel].next(row.queue, mask)
    row.accesses = (c.access(s.read, False),)
    row.nbytes = c.value(s.work.bytes)
    yield row


def _queue(c: Cohort, s: Any, channel: pm.Channel, to: Number, member: Number) -> Number:
    """One array object per statement while nothing but the unit decides, so that counting stays uniform."""
    known = c._queues.get(id(s))
    if known is None:
        steady = symbols(getattr(s, "to", Const(0))) | symbols(s.member) <= {"unit"}
        queue = to * channel.members + member
        if steady and isinstance(queue, np.ndarray):
            # Statements that use the same queues share one array, so that they are counted together.
            queue = c._same_queues.setdefault((channel.name, queue.tobytes()), queue)
        known = c._queues[id(s)] = (steady, queue)
    return known[1] if known[0] else to * channel.members + member


def _receive(c: Cohort, s: pm.Receive, mask: Mask) -> Walk:
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to, row.member = c.unit, c.value(s.member)
    row.queue = _queue(c, s, channel, row.to, row.member)
    row.number = c.taken[s.channel].next(row.queue, mask)
    _take_slot(c, row, channel, mask)
    yield row


def _take_slot(c: Cohort, row: Row, channel: pm.Channel, mask: Mask) -> None:
    s = row.statement
    row.slot = c.storages.slot(channel.name, row.member, row.number)
    row.nbytes = c.value(s.work.bytes)
    if s.into is not None:
        if s.fresh:
            c.begin_version(s.into.tile, mask)
        row.accesses = (c.access(s.into, True),)
    else:
        c.bind(s.name, row.slot, mask)


def _receive_any(c: Cohort, s: pm.ReceiveAny, mask: Mask) -> Walk:
    if c.vector:
        raise TypeError("units with a receive-from-any are followed one by one")
    row = Row(s, mask)
    channel = c.channels[s.channel]
    row.to = c.unit
    row.value = tuple(c.taken[s.channel].peek(c.unit * channel.members + m) for m in s.members)
    chosen = yield row
    c.env[s.chosen] = chosen
    row.member = chosen
    row.queue = c.unit * channel.members + chosen
    row.number = c.taken[s.channel].next(row.queue, mask)
    _take_slot(c, row, channel, mask)


def _read_scalar(c: Cohort, s: pm.ReadScalar, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.accesses = (c.access(s.read, False),)
    count = c.reads.get(s.name, 0)
    c.reads[s.name] = c.choose(mask, count + 1, count)
    new = c.scalars(s, c.unit, count)
    c.env[s.name] = c.choose(mask, new, c.env.get(s.name, new))
    yield row


def _signal(c: Cohort, s: pm.Signal, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.to, row.member, row.value = c.value(s.to), c.value(s.member), c.value(s.amount)
    yield row


def _wait(c: Cohort, s: pm.Wait, mask: Mask) -> Walk:
    row = Row(s, mask)
    row.to, row.member, row.value = c.unit, c.value(s.member), c.value(s.value)
    yield row


def _collective(c: Cohort, s: pm.Collective, mask: Mask) -> Walk:
    row = Row(s, mask)
    group = next(g for g in c.plan.groups if g.name == s.group)
    row.group = c.value(group.key)
    row.number = c.met[s.group]
    c.met[s.group] = c.choose(mask, row.number + 1, row.number)
    reads = () if s.read is None else (c.access(s.read, False),)
    writes = () if s.write is None else (c.access(s.write, True),)
    row.accesses = (*reads, *writes)
    row.nbytes = c.value(s.work.bytes)
    yield row


def _free(c: Cohort, s: pm.Free, mask: Mask) -> Walk:
    yield from c.release(list(s.names), mask)
    c.end(s.names, mask)


def _loop(c: Cohort, s: pm.Loop, mask: Mask) -> Walk:
    start, stop, step = c.value(s.start), c.value(s.stop), c.value(s.step)
    outer_env = {n: c.env[n] for n in (s.index,) if n in c.env}
    for carry in s.carries:
        if isinstance(carry, pm.CarryTile):
            c.bind(carry.name, c.storage_of(carry.init), mask)
        else:
            c.env[carry.name] = c.choose(mask, c.value(carry.init), c.env.get(carry.name, 0))
    yield from c.release(list(s.frees), mask)
    c.end(s.frees, mask)
    index = start
    while True:
        going = (index < stop) if not isinstance(step, np.ndarray) and step > 0 else (index > stop)
        if isinstance(step, np.ndarray):
            going = np.where(step > 0, index < stop, index > stop)
        inner = mask
        if isinstance(going, np.ndarray):
            inner = going if mask is None else (mask & going)
            if not inner.any():
                break
            if mask is None and inner.all():
                inner = None
        elif not going:
            break
        c.env[s.index] = index
        yield from _iteration(c, s, inner)
        index = index + step
    c.env.pop(s.index, None)
    c.env.update(outer_env)


def _iteration(c: Cohort, s: pm.Loop, mask: Mask) -> Walk:
    old: list[tuple[Number, Mask]] = []

    def keep() -> None:
        tiles = [(x, c.storage_of(x.next)) for x in s.carries if isinstance(x, pm.CarryTile)]
        ints = [(x, c.value(x.next)) for x in s.carries if isinstance(x, pm.CarryInt)]
        for carry, storage in tiles:
            # A body may already have freed the carried name: then nothing is held for its old meaning.
            if carry.name in c.names:
                old.append((c.names[carry.name], mask))
            c.bind(carry.name, storage, mask)
        for counted, number in ints:
            c.env[counted.name] = c.choose(mask, number, c.env.get(counted.name, number))

    yield from c.scoped(s.body, mask, keep)
    for storage, who in old:
        yield from _released(c.holds.drop(storage, who))


def _if(c: Cohort, s: pm.If, mask: Mask) -> Walk:
    condition = c.value(s.condition)
    if isinstance(condition, np.ndarray):
        yes = condition != 0
        no = ~yes
        branches = [(s.body, yes if mask is None else yes & mask, True)]
        branches.append((s.orelse, no if mask is None else no & mask, False))
    else:
        branches = [(s.body, mask, True)] if condition else [(s.orelse, mask, False)]
    for body, who, then in branches:
        if isinstance(who, np.ndarray) and not who.any():
            continue
        everyone = isinstance(who, np.ndarray) and mask is None and who.all()
        yield from _branch(c, s, body, None if everyone else who, then)


def _branch(c: Cohort, s: pm.If, body: tuple[Any, ...], mask: Mask, then: bool) -> Walk:
    merged: list[tuple[str, Number, bool]] = []

    def keep() -> None:
        for merge in s.merges:
            if isinstance(merge, pm.MergeTile):
                merged.append((merge.name, c.storage_of(merge.then if then else merge.orelse), True))
            else:
                merged.append((merge.name, c.value(merge.then if then else merge.orelse), False))
        for name, storage, is_tile in merged:
            if is_tile:
                c.holds.hold(storage, mask)
                if name in before:
                    ended.extend(c.holds.drop(c.names[name], mask))

    before = set(c.names)
    ended: list[tuple[Number, Mask]] = []
    yield from c.scoped(body, mask, keep)
    yield from _released(ended)
    for name, meaning, is_tile in merged:
        table = c.names if is_tile else c.env
        table[name] = c.choose(mask, meaning, table.get(name, meaning))


_RULES: dict[type, Callable[[Cohort, Any, Mask], Walk]] = {
    pm.Compute: _compute,
    pm.Send: _send,
    pm.Receive: _receive,
    pm.ReceiveAny: _receive_any,
    pm.ReadScalar: _read_scalar,
    pm.Signal: _signal,
    pm.Wait: _wait,
    pm.Collective: _collective,
    pm.Free: _free,
    pm.Loop: _loop,
    pm.If: _if,
}
