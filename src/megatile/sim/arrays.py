"""The evaluator for regular plans: all units of a stream at once, command by command.

Valid when nothing has to be arbitrated: no resource has two users (or they never meet there), there is no
receive-from-any and no flag, and no unit touches another's storage. Times are then sums and maxima, and they
are worked out for a whole stream at a time: a plain int while all units agree, an array over the units where
they differ.
`NotRegular` says that a plan is not of this kind; the run-ahead evaluator takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.memory import aliases
from megatile.sim.array_sends import NotRegular, Sends
from megatile.sim.cohort import Cohort
from megatile.sim.follow import walk
from megatile.sim.lowering import Lowering, bytes_moved, transfer_times
from megatile.sim.meetings import Meetings
from megatile.sim.messages import MessageTimes
from megatile.sim.program import Program
from megatile.sim.rows import Access, Released, Row
from megatile.sim.times import Times
from megatile.sim.values import (
    Value,
    latest,
    level,
    plain_int,
    same_block,
    storages_of,
    within,
)
from megatile.timing.resources import Resources

_PRUNE_AT = 8


def check_regular(plan: pm.Plan, machine: Resources) -> None:
    """Raise `NotRegular` if a plan is of the wrong kind at first sight."""
    for stream in plan.streams:
        for statement in pm.statements(stream.body):
            if isinstance(statement, (pm.ReceiveAny, pm.Signal, pm.Wait)):
                raise NotRegular(f"it has a {type(statement).__name__}")
    if any(tile.shared for tile in plan.tiles):
        raise NotRegular("units share tiles")
    if aliases(plan):
        raise NotRegular("tiles lie over each other in memory")
    if machine.faults.jitter is not None:
        raise NotRegular("jitter makes every message different")


class Lane:
    """The units of one stream and their clocks."""

    def __init__(self, program: Program, units: list[int], cohort: Cohort) -> None:
        self.lowering = Lowering(program, units)
        self.units = units
        self.size = len(units)
        self.walk: Iterator[Row] = walk(cohort)
        self.row: Row | None = None
        self.now: Value = level([program.machine.start_ps(u) for u in units])
        self.free: list[Value] = [0] * len(program.engine_names)
        self.open: list[tuple[Access, Value, Any]] = []
        """Unfinished accesses: the block, when it ends, and by which units."""
        self.times: dict[Any, Any] = {}
        self.held: dict[int, tuple[str, Any, Any]] = {}


class Arrays:
    """Evaluates a regular plan; ``record`` keeps the times of every command, ``alone`` allows links that
    several use one after the other."""

    def __init__(
        self, program: Program, lanes: list[Lane], *, record: bool = False, alone: bool = False
    ) -> None:
        self.sends = Sends(program, alone=alone)
        self.program = program
        self.lanes = lanes
        self.record = record
        self.arrivals = {c.name: MessageTimes(program.plan.units * c.members) for c in program.plan.channels}
        self.credits = {c.name: MessageTimes(program.plan.units * c.members) for c in program.plan.channels}
        self.last = 0
        self.recorded: list[tuple[Lane, Row, Value, Value]] = []
        self._memories: dict[int, str] = {}
        self._meetings = Meetings(program)
        self._rules: dict[type, Callable[[Lane, Row], bool]] = {
            pm.Compute: self.compute,
            pm.Send: self.send,
            pm.Receive: self.receive,
            pm.ReadScalar: self.read,
            pm.Collective: self.meet,
            Released: self.release,
        }

    def run(self) -> Times:
        waiting = list(self.lanes)
        while waiting:
            moved = [lane for lane in waiting if self.advance(lane)]
            waiting = [lane for lane in waiting if lane.row is not None]
            if waiting and not moved:
                raise NotRegular("its units do not go in step")
        return self._times()

    def advance(self, lane: Lane) -> bool:
        """Take a stream as far as it goes; whether it went any way at all."""
        moved = False
        while True:
            if lane.row is None:
                lane.row = next(lane.walk, None)
                if lane.row is None:
                    return True
            row = lane.row
            rule = self._rules.get(type(row.statement))
            if rule is None:
                raise NotRegular(f"it has a {type(row.statement).__name__}")
            if not rule(lane, row):
                return moved
            lane.row = None
            moved = True

    # blocks

    def hazard(self, lane: Lane, access: Access, start: Value) -> Value:
        """The start moved behind every unfinished access that conflicts."""
        write, storage = access.write, access.storage
        for other, end, mask in lane.open:
            if not (write or other.write):
                continue
            if type(end) is int and type(start) is int and end <= start:
                continue
            if type(storage) is int and type(other.storage) is int and storage != other.storage:
                continue
            same = same_block(access, other)
            if same is False:
                continue
            if mask is not None:
                same = mask if same is True else same & mask
            start = latest(start, end) if same is True else np.where(same, latest(start, end), start)
        return start

    def mark(self, lane: Lane, row: Row, end: Value) -> None:
        """Note a row's accesses as unfinished; forget those that have finished for all units."""
        found, now = lane.open, lane.now
        if type(now) is int:
            found[:] = [entry for entry in found if not (type(entry[1]) is int and entry[1] <= now)]
        if len(found) > _PRUNE_AT:
            earliest = int(np.min(now))
            found[:] = [entry for entry in found if int(np.max(entry[1])) > earliest]
        for access in row.accesses:
            found.append((access, end, row.mask))

    def _private(self, row: Row) -> None:
        for access in row.accesses:
            if access.owner is not None:
                raise NotRegular("units touch each other's storage")

    # commands

    def compute(self, lane: Lane, row: Row) -> bool:
        self._private(row)
        engine, busy, latency = self._engine_times(lane, row)
        start = latest(lane.now, lane.free[engine])
        for access in row.accesses:
            start = self.hazard(lane, access, start)
        end = start + busy
        self._busy(lane, row, engine, end)
        end = end + latency
        self.mark(lane, row, end)
        self._note(lane, row, start, end)
        return True

    def _engine_times(self, lane: Lane, row: Row) -> tuple[int, Value, Value]:
        statement = row.statement
        key = (id(statement), plain_int(row.flops), plain_int(row.nbytes), self._ends(row))
        known = lane.times.get(key) if None not in key else None
        if known is not None:
            return known
        machine, program = self.program.machine, self.program
        if statement.engine == "dma":
            source = row.accesses[0] if len(row.accesses) > 1 else row.accesses[-1]
            result = self._copy_times(lane, row, source)
        else:
            if machine.engine_resource(statement.engine, lane.units[0]) is not None:
                raise NotRegular("units share an engine")
            flops = row.flops.tolist() if isinstance(row.flops, np.ndarray) else [row.flops] * lane.size
            if not isinstance(row.flops, np.ndarray) and not machine.faults.straggler:
                busy: Value = machine.compute_ps(statement, row.flops, lane.units[0])
            else:
                each = zip(flops, lane.units, strict=True)
                busy = level([machine.compute_ps(statement, f, u) for f, u in each])
            result = (program.engine_names.index(statement.engine), busy, 0)
        if None not in key:
            lane.times[key] = result
        return result

    def _ends(self, row: Row) -> tuple[Any, ...] | None:
        """What the times of a row depend on besides its bytes: memories."""
        storages = storages_of(row)
        if storages is None:
            return None
        return tuple([self._memory(s) for s in storages])

    def _memory(self, storage: int) -> str:
        found = self._memories.get(storage)
        if found is None:
            found = self._memories[storage] = self.program.storages.memory(storage)
        return found

    def _copy_times(self, lane: Lane, row: Row, source: Access) -> tuple[int, Value, Value]:
        program = self.program
        busy, latency = [], []
        for i, unit in enumerate(lane.units):
            path = program.copy_path(unit, source, row.accesses[-1], i)
            if any(stage.resource is not None for stage in path.stages):
                raise NotRegular("units share a memory")
            held, rest = transfer_times(path, bytes_moved(row, i))
            busy.append(held)
            latency.append(rest)
        if program.machine.engine_resource("dma", lane.units[0]) is not None:
            raise NotRegular("units share an engine")
        return program.engine_names.index("dma.0"), level(busy), level(latency)

    def _busy(self, lane: Lane, row: Row, engine: int, until: Value) -> None:
        lane.free[engine] = until if row.mask is None else np.where(row.mask, until, lane.free[engine])

    def send(self, lane: Lane, row: Row) -> bool:
        self._private(row)
        channel, slots, engine, busy, latency, claims, _ = self.sends.times(lane, row, self._ends(row))
        now = lane.now
        if type(row.number) is not int or row.number >= slots:
            credit = self.credits[channel].get(row.queue, row.number - slots, row.mask, lane.size)
            if credit is None:
                return False
            now = within(row.mask, latest(now, credit), now)
        start = latest(now, lane.free[engine])
        start = self.hazard(lane, row.accesses[0], start)
        if claims is not None:
            self.sends.pass_links(claims, start, lane.size)
        end = start + busy
        lane.now = now
        self._busy(lane, row, engine, end)
        self.mark(lane, row, end)
        self.arrivals[channel].put(row.queue, row.number, row.mask, end + latency)
        self._last(row, end + latency)
        self._note(lane, row, start, end)
        return True

    def receive(self, lane: Lane, row: Row) -> bool:
        statement = row.statement
        self._private(row)
        arrival = self.arrivals[statement.channel].get(row.queue, row.number, row.mask, lane.size)
        if arrival is None:
            return False
        begin = lane.now
        lane.now = within(row.mask, latest(begin, arrival), begin)
        if statement.into is None:
            self._hold(lane, row)
            self._note(lane, row, begin, lane.now)
            return True
        engine, busy, latency = self._take_times(lane, row)
        start = latest(lane.now, lane.free[engine])
        start = self.hazard(lane, row.accesses[-1], start)
        end = start + busy
        self._busy(lane, row, engine, end)
        end = end + latency
        self.mark(lane, row, end)
        self.credits[statement.channel].put(
            row.queue, row.number, row.mask, end + self._credit_ps(lane, statement.channel, row.queue)
        )
        self._note(lane, row, start, end)
        return True

    def _take_times(self, lane: Lane, row: Row) -> tuple[int, Value, Value]:
        key = (id(row.statement), plain_int(row.nbytes), self._ends(row), "take")
        if None in key or key not in lane.times:
            source = Access(row.slot, None, (), False, row.statement.channel)
            lane.times[key] = self._copy_times(lane, row, source)
        return lane.times[key]

    def _hold(self, lane: Lane, row: Row) -> None:
        """Remember which message lies in which slot."""
        if row.mask is None and type(row.slot) is int:
            lane.held[row.slot] = (row.statement.channel, row.queue, row.number)
            return
        slots = np.broadcast_to(row.slot, (lane.size,))
        queues, numbers = np.broadcast_to(row.queue, slots.shape), np.broadcast_to(row.number, slots.shape)
        for slot in np.unique(slots if row.mask is None else slots[row.mask]).tolist():
            here = slots == slot if row.mask is None else (slots == slot) & row.mask
            _, old_queue, old_number = lane.held.get(slot, ("", 0, 0))
            held = (np.where(here, queues, old_queue), np.where(here, numbers, old_number))
            lane.held[slot] = (row.statement.channel, *held)

    def _credit_ps(self, lane: Lane, name: str, queue: Any) -> Value:
        """How long the credits of these queues travel back."""
        key = ("credit", id(queue), name)
        known = lane.times.get(key)
        if known is None or known[0] is not queue:
            channel = self.program.channel(name)
            queues = np.broadcast_to(queue, (lane.size,)).tolist()
            each = level([self.program.link(channel, q, strict=False).credit_ps for q in queues])
            known = lane.times[key] = (queue, each)
        return known[1]

    def release(self, lane: Lane, row: Row) -> bool:
        if type(row.slot) is not int:
            slots = np.unique(row.slot if row.mask is None else row.slot[row.mask]).tolist()
            for slot in slots:
                here = row.slot == slot
                part = Row(row.statement, here if row.mask is None else here & row.mask)
                part.slot = slot
                self._release_one(lane, part)
            end = lane.now
        else:
            end = self._release_one(lane, row)
        self._note(lane, row, lane.now, end)
        return True

    def _release_one(self, lane: Lane, row: Row) -> Value:
        name, queue, number = lane.held[row.slot]
        access = Access(row.slot, None, (), True, name)
        end = self.hazard(lane, access, lane.now)
        self.credits[name].put(queue, number, row.mask, end + self._credit_ps(lane, name, queue))
        return end

    def read(self, lane: Lane, row: Row) -> bool:
        self._private(row)
        lane.now = within(row.mask, self.hazard(lane, row.accesses[0], lane.now), lane.now)
        self._note(lane, row, lane.now, lane.now)
        return True

    def meet(self, lane: Lane, row: Row) -> bool:
        """Units of a group wait for one another; the network then does its part."""
        self._private(row)
        ready = lane.now
        for access in row.accesses:
            ready = self.hazard(lane, access, ready)
        done = self._meetings.done(lane.lowering, row, ready)
        if done is None:
            raise NotRegular("the members of a group come at different points of their streams")
        begin, lane.now = lane.now, within(row.mask, done, lane.now)
        self.mark(lane, row, done)
        self._note(lane, row, begin, done)
        return True

    # the end

    def _note(self, lane: Lane, row: Row, start: Value, end: Value) -> None:
        self._last(row, end)
        if self.record:
            self.recorded.append((lane, row, start, end))

    def _last(self, row: Row, end: Value) -> None:
        if row.mask is not None:
            end = int(np.max(np.where(row.mask, end, 0)))
        elif type(end) is not int:
            end = int(end.max())
        if end > self.last:
            self.last = end

    def _times(self) -> Times:
        ends = [self.last] + [int(np.max(lane.now)) for lane in self.lanes]
        times = Times(max(ends))
        if self.record:
            units = self.program.plan.units
            times.start, times.end = [[] for _ in range(units)], [[] for _ in range(units)]
            for lane, row, start, end in self.recorded:
                active = range(lane.size) if row.mask is None else np.flatnonzero(row.mask).tolist()
                times.record(lane.units, active, start, end)
        return times
