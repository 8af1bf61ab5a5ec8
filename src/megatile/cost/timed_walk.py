"""The walk over a plan that keeps a clock per unit; ``price.py`` says what its times mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from megatile.cost.flows import Flows
from megatile.cost.hazards import Hazards
from megatile.cost.local_loops import LocalWatch, local_watch, skip_local
from megatile.cost.periods import Watch, pass_time, watch_of
from megatile.plan.code import Instruction, RegionCode
from megatile.plan.cohort import Cohort, SlotHandle, Value, spread
from megatile.plan.follow import Follower
from megatile.plan.model import Channel, Compute, Plan, ReceiveAny, statements
from megatile.timing.resources import PORTS, Resources

SHORT = 16
"""Loops of so few iterations are walked."""
Clocks = dict[tuple[Any, ...], Any]


class Enough(Exception):
    """More time has passed than was asked about."""

    def __init__(self, time_ps: int):
        super().__init__(time_ps)
        self.time_ps = time_ps


def receives_any(plan: Plan) -> frozenset[str]:
    """The channels from which somebody takes whatever comes first."""
    return frozenset(
        s.channel for stream in plan.streams for s in statements(stream.body) if isinstance(s, ReceiveAny)
    )


class TimedWalk(Follower):
    """The walk with clocks. ``careful`` takes blocks that may overlap to overlap; ``patient=False`` waits
    for nothing whose order the timed run decides."""

    def __init__(
        self,
        plan: Plan,
        machine: Resources,
        assume: Mapping[str, int],
        *,
        careful: bool,
        patient: bool = True,
    ):
        super().__init__(plan)
        self.impatient = frozenset() if patient else receives_any(plan)
        self.machine, self.assume = machine, assume
        units = plan.units
        self.begin = np.asarray([machine.start_ps(u) for u in range(units)], dtype=np.int64)
        self.now = self.begin.copy()
        self.free: dict[str, Any] = {}
        self.touched = np.zeros(units, dtype=np.int64)
        self.last = np.zeros(units, dtype=np.int64)
        self.hazards = Hazards(plan, careful)
        self.flows = Flows(plan, machine)
        shape = {name: q.holds.shape for name, q in self.queues.items()}
        self.arrival = {name: np.zeros(s, dtype=np.int64) for name, s in shape.items()}
        self.credit = {name: np.zeros(s, dtype=np.int64) for name, s in shape.items()}
        self.signals: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        self.watches: dict[int, Watch | None] = {}
        self.local: dict[int, LocalWatch | None] = {}
        self.enough_ps: int | None = None

    def clocks(self) -> Clocks:
        """All times by name, as arrays that may be changed."""
        named: Clocks = {
            ("now",): self.now,
            ("touched",): self.touched,
            ("last",): self.last,
        }
        named |= {("free", name): times for name, times in self.free.items()}
        named |= {("arrival", name): times for name, times in self.arrival.items()}
        named |= {("credit", name): times for name, times in self.credit.items()}
        return named | self.hazards.clocks()

    def step_enter(self, cohort: Cohort, instruction: Instruction) -> bool:
        done = super().step_enter(cohort, instruction)
        loop: Any = instruction.statement
        bounds = self.bounds(cohort, loop)
        trips = 0 if bounds is None else len(range(*bounds))
        self.watches[id(loop)] = watch_of(self, loop)
        self.local[id(loop)] = local_watch(self, loop, trips) if trips > SHORT else None
        return done

    def bounds(self, cohort: Cohort, loop: Any) -> tuple[int, int, int] | None:
        """Where a loop stands, if all units of the cohort agree."""
        found = tuple(cohort.ints[f"{loop.index}{suffix}"] for suffix in ("", ".stop", ".step"))
        return found if all(isinstance(v, int) for v in found) else None

    def step_again(self, cohort: Cohort, instruction: Instruction) -> bool:
        """After an iteration; where the rest of the loop only moves time on, it is skipped."""
        super().step_again(cohort, instruction)
        self.hazards.forget(int(self.now.min()))
        loop: Any = instruction.statement
        watch, local = self.watches.get(id(loop)), self.local.get(id(loop))
        bounds = self.bounds(cohort, loop)
        if bounds is None or (watch is None and local is None):
            return True
        skipped, remaining = 0, len(range(*bounds))
        alone = not self.ready and not self.waiting and len(cohort) == self.plan.units
        if local is not None:
            skipped = skip_local(self, local, loop, cohort, remaining)
        elif watch is not None and alone:
            skipped = pass_time(self, watch, loop, cohort, remaining)
        cohort.ints[loop.index] = bounds[0] + skipped * bounds[2]
        return True

    def end_ps(self) -> int:
        """When the last thing has happened."""
        times = [self.now, self.last, *self.free.values(), *self.arrival.values()]
        return max((int(t.max()) for t in times if t.size), default=0)

    def engine(self, name: str) -> Any:
        return self.free.setdefault(name, np.zeros(self.plan.units, dtype=np.int64))

    # --- commands --------------------------------------------------------------------------------

    def on_compute(self, cohort: Cohort, instruction: Instruction) -> None:
        statement = instruction.statement
        assert isinstance(statement, Compute)
        assert instruction.write is not None
        if statement.engine == "dma":
            source = instruction.reads[0] if instruction.reads else instruction.write
            ends = self.end_of(cohort, source), self.end_of(cohort, instruction.write)
            nbytes = instruction.functions["bytes"](cohort.ints)
            busy, latency = self.flows.copy(cohort.units, *ends[0], *ends[1], nbytes)
            self.work(cohort, instruction, "dma.0", busy, latency)
            return
        flops = instruction.functions["flops"](cohort.ints)
        busy = self.flows.compute(statement, cohort.units, flops)
        self.work(cohort, instruction, statement.engine, busy, 0)

    def work(self, cohort: Cohort, instruction: Instruction, engine: str, busy: Any, latency: Any) -> None:
        """A command on an engine: it starts when it is issued, the engine is free and no hazard is left."""
        units, free = cohort.units, self.engine(engine)
        fresh = bool(getattr(instruction.statement, "fresh", False))
        reads = [self.hazards.at(cohort, code) for code in instruction.reads]
        writes = [self.hazards.at(cohort, code, fresh) for code in (instruction.write,) if code is not None]
        start = np.maximum(self.now[units], free[units])
        for block in reads:
            start = np.maximum(start, self.hazards.written(block))
        for block in writes:
            start = np.maximum(start, self.hazards.used(block))
        free[units] = start + busy
        end = start + busy + latency
        for block in reads:
            self.hazards.read(block, end)
        for block in writes:
            self.hazards.write(block, end)
        self.finish(cohort, instruction, end)

    def finish(self, cohort: Cohort, instruction: Instruction, end: Any) -> None:
        units = cohort.units
        self.last[units] = np.maximum(self.last[units], end)
        codes = [*instruction.reads, *((instruction.write,) if instruction.write else ())]
        if any(self.hazards.is_shared(cohort, code) for code in codes):
            self.touched[units] = np.maximum(self.touched[units], end)

    def end_of(self, cohort: Cohort, code: RegionCode) -> tuple[Any, str]:
        """The unit at whose memory a region lies, and that memory."""
        handle = cohort.handles[code.tile]
        if isinstance(handle, SlotHandle):
            return cohort.units, self.queues[handle.channel].channel.memory
        tile = self.plan.tile(handle.tile)
        if code.at is None and not tile.shared:
            return cohort.units, tile.memory
        own = spread(tile.owner.evaluate(cohort.ints), len(cohort))
        owner = spread(code.at(cohort.ints), len(cohort)) if code.at else own
        if not tile.shared:
            return owner, tile.memory
        return np.where(own == owner, cohort.units, self.flows.first_sharer(tile)[owner]), tile.memory

    def on_send(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, slot: Value
    ) -> None:
        statement: Any = instruction.statement
        units, code = cohort.units, instruction.reads[0]
        channel = self.queues[statement.channel].channel
        nbytes = instruction.functions["bytes"](cohort.ints)
        _, memory = self.end_of(cohort, code)
        queue = np.asarray(to) * channel.members + member
        busy, latency = self.flows.send(channel, units, memory, to, spread(queue, len(cohort)), nbytes)
        lanes = spread(self.lane(channel, member, units, to), len(cohort))
        free = self.lanes_free(lanes, units)
        now = self.now[units]
        if channel.name not in self.impatient:
            now = np.maximum(now, self.credit[channel.name][to, member, slot])
        self.now[units] = now
        block = self.hazards.at(cohort, code)
        start = np.maximum(np.maximum(now, free), self.hazards.written(block))
        start = np.maximum(start, self.touched[units])
        end = start + busy
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            self.engine(f"dma.{lane}")[units[here]] = spread(end, len(units))[here]
        self.hazards.read(block, end)
        self.arrival[channel.name][to, member, slot] = end + latency
        if self.enough_ps is not None and len(units):
            reached = int(np.max(end + latency))
            if reached > self.enough_ps:
                raise Enough(reached)

    def lane(self, channel: Channel, member: Value, units: Any, to: Value) -> Value:
        """The virtual channel of a queue; where every link has its own, queues are taken not to meet."""
        find = self.machine.virtual_channel
        if self.machine.dma.channels <= 2:
            return find(channel.name)
        if self.machine.dma.channels <= PORTS:
            pairs = zip(units.tolist(), spread(to, len(units)).tolist(), strict=True)
            return np.array([find(channel.name, unit, peer) for unit, peer in pairs], dtype=np.int64)
        first = 0
        for known in self.plan.channels:
            if known.name == channel.name:
                break
            first += known.members
        return 1 + first + member

    def lanes_free(self, lanes: Any, units: Any) -> Any:
        """When each unit's virtual channel has finished what it was given before."""
        free = np.zeros(len(units), dtype=np.int64)
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            free[here] = self.engine(f"dma.{lane}")[units[here]]
        return free

    def on_receive(self, cohort: Cohort, instruction: Instruction, handle: SlotHandle) -> None:
        units = cohort.units
        channel = self.queues[handle.channel].channel
        slot = handle.sequence % channel.slots
        arrival = self.arrival[handle.channel][units, handle.member, slot]
        if handle.channel in self.impatient:
            arrival = np.minimum(arrival, self.now[units])
        self.now[units] = np.maximum(self.now[units], arrival)
        self.hazards.arrive(handle, units, slot, arrival)
        if instruction.write is None:
            return
        ends = self.end_of(cohort, instruction.write)
        nbytes = instruction.functions["bytes"](cohort.ints)
        busy, latency = self.flows.copy(units, units, channel.memory, *ends, nbytes)
        self.work(cohort, instruction, "dma.0", busy, latency)
        landed = self.engine("dma.0")[units] + latency
        self.hazards.hold(handle, units, slot, landed)

    def choose(self, cohort: Cohort, instruction: Instruction, at: int) -> int | None:
        """Of the messages that have been sent, the one that is there first (the lowest member of several)."""
        statement: Any = instruction.statement
        queues, unit = self.queues[statement.channel], int(cohort.units[at])
        there = [m for m in statement.members if queues.sent[unit, m] > queues.received[unit, m]]
        arrival, slots = self.arrival[statement.channel], queues.channel.slots
        return min(there, key=lambda m: (arrival[unit, m, queues.received[unit, m] % slots], m), default=None)

    def on_free(self, channel: str, units: Any, member: Any, slot: Any) -> None:
        """The credit leaves when the slot's users have finished."""
        time = np.maximum(self.now[units], self.hazards.slot_used(channel, units, member, slot))
        back = self.flows.credit(self.queues[channel].channel, units, member)
        self.credit[channel][units, member, slot] = time + back

    # --- numbers, flags, groups ------------------------------------------------------------------

    def on_read_scalar(self, cohort: Cohort, instruction: Instruction) -> Value:
        statement: Any = instruction.statement
        block = self.hazards.at(cohort, instruction.reads[0])
        self.now[cohort.units] = np.maximum(self.now[cohort.units], self.hazards.written(block))
        return self.assume.get(statement.name, statement.bound)

    def on_signal(
        self, cohort: Cohort, instruction: Instruction, to: Value, member: Value, amount: Value
    ) -> None:
        statement: Any = instruction.statement
        count = len(cohort)
        targets, members, amounts = (spread(v, count) for v in (to, member, amount))
        gone = np.maximum(self.now[cohort.units], self.touched[cohort.units])
        for at, unit in enumerate(cohort.units.tolist()):
            target = int(targets[at])
            time = int(gone[at]) + self.machine.signal_ps(unit, target)
            key = (statement.flag, target, int(members[at]))
            self.signals.setdefault(key, []).append((time, int(amounts[at])))
            self.last[unit] = max(self.last[unit], time)

    def on_wait(self, cohort: Cohort, instruction: Instruction, member: Value, value: Value) -> None:
        statement: Any = instruction.statement
        members, values = (spread(v, len(cohort)) for v in (member, value))
        for at, unit in enumerate(cohort.units.tolist()):
            reached, total = 0, 0
            for time, amount in sorted(self.signals.get((statement.flag, unit, int(members[at])), [])):
                if total >= values[at]:
                    break
                reached, total = time, total + amount
            self.now[unit] = max(self.now[unit], reached)

    def on_collective(self, group: str, parts: list[tuple[Cohort, Instruction]]) -> None:
        keys = self.keys[group]
        came = np.zeros(self.plan.units, dtype=np.int64)
        for cohort, instruction in parts:
            time = np.maximum(self.now[cohort.units], self.touched[cohort.units])
            for code in instruction.reads:
                time = np.maximum(time, self.hazards.written(self.hazards.at(cohort, code)))
            if instruction.write is not None:
                time = np.maximum(time, self.hazards.used(self.hazards.at(cohort, instruction.write)))
            came[cohort.units] = time
        for cohort, instruction in parts:
            nbytes = spread(instruction.functions["bytes"](cohort.ints), len(cohort))
            for key in np.unique(keys[cohort.units]):
                members = np.flatnonzero(keys == key)
                here = cohort.units[keys[cohort.units] == key]
                size = int(nbytes[keys[cohort.units] == key][0])
                self.now[here] = int(came[members].max()) + self.flows.meeting(
                    instruction.statement, members, size
                )
            end = self.now[cohort.units]
            for code in instruction.reads:
                self.hazards.read(self.hazards.at(cohort, code), end)
            if instruction.write is not None:
                self.hazards.write(self.hazards.at(cohort, instruction.write), end)
            self.finish(cohort, instruction, end)
