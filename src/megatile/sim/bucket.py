"""The plain evaluator: an event queue in time order, nothing else. It is the oracle of the tests.

Every resource is a server with a queue, every command a job that starts when its gates have opened, every
unit issues at its own real time. Within one picosecond: first everything that happens (phase 0), then
receive-from-any decisions, then requests for resources in the order of their keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from megatile.sim.bucket_hops import Hops
from megatile.sim.clock import Accesses, Action, Gate, after, opened_gate
from megatile.sim.program import COPY, GENERAL, RECEIVE, RELEASE, RUN, Operation, Program, at
from megatile.sim.rows import Row
from megatile.sim.times import Times
from megatile.sim.transfers import PIECES
from megatile.sim.unit import UnitState


class Bucket(Hops):
    """Runs a program one event at a time."""

    def __init__(self, program: Program, units: list[UnitState]) -> None:
        self.units = units
        super().__init__(program)
        self.tails = [[opened_gate() for _ in program.engine_names] for _ in units]
        self.accesses = [Accesses() for _ in units]
        self.touched: list[list[Gate]] = [[] for _ in units]
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self.returned: dict[int, set[int]] = defaultdict(set)
        self.flags: dict[Any, int] = defaultdict(int)
        self.meetings: dict[Any, list[tuple[UnitState, Any, int]]] = defaultdict(list)
        self.parked: dict[Any, list[UnitState]] = defaultdict(list)
        self.choices: dict[int, list[int]] = {}

    def run(self) -> Times:
        for unit in self.units:
            self.clock.at(unit.now, lambda u=unit: self.issue(u))  # type: ignore[misc]
        self.clock.run()
        times = Times(self.last)
        times.operations = [u.operations for u in self.units]
        times.start = [u.start for u in self.units]
        times.end = [u.end for u in self.units]
        times.arrival = dict(self.arrived)
        times.choices = self.choices
        times.complete = all(u.done for u in self.units)
        return times

    last = 0

    def issue(self, unit: UnitState) -> None:
        """Issue commands until one holds the unit up."""
        while True:
            if unit.pc == len(unit.operations):
                fetched = next(unit.more, None) if unit.more is not None else None
                if fetched is None:
                    unit.done = True
                    self.last = max(self.last, self.clock.now)
                    return
                unit.operations.append(fetched)
                unit.start.append(None)
                unit.end.append(None)
            if not self.do(unit, unit.operations[unit.pc], unit.pc):
                return
            unit.pc += 1

    def park(self, unit: UnitState, key: Any) -> bool:
        self.parked[key].append(unit)
        return False

    def wake(self, key: Any) -> None:
        for unit in self.parked.pop(key, []):
            self.issue(unit)

    def note(self, unit: UnitState, pc: int, start: int | None, end: int | None) -> None:
        if start is not None:
            unit.start[pc] = start
        if end is not None:
            unit.end[pc] = end
            self.last = max(self.last, end)

    # commands

    def do(self, unit: UnitState, operation: tuple[Any, ...], pc: int) -> bool:
        kind = operation[0]
        if kind == RUN:
            _, (engine, busy, latency, row), _, _ = operation
            self.job(unit, pc, row, engine, lambda done: self.engine(pc, unit, busy, latency, done))
            return True
        if kind == RECEIVE:
            _, (queue, _), number, _, row = operation
            return self.take(unit, pc, queue, number)
        if kind == RELEASE:
            _, (queue, _, credit_ps, _), number, row = operation
            self.release(unit, pc, queue, number, credit_ps, row)
            return True
        if kind == COPY:
            _, (engine, path, nbytes, flow), number, _, _, row = operation
            made = Operation("copy", row, unit.unit, engine, path=path, nbytes=nbytes)
            made.flow, made.number = flow, number
            return self.do_copy(unit, made, pc)
        assert kind == GENERAL, "the other kinds are for ways that nobody shares"
        return bool(getattr(self, f"do_{operation[1].kind}")(unit, operation[1], pc))

    def gates(self, unit: UnitState, row: Row) -> tuple[list[Gate], list[tuple[Any, Any, bool]]]:
        """What an access must wait for, and how to note it."""
        waits: list[Gate] = []
        marks = []
        for access in row.accesses:
            key = (at(access.owner, 0), at(access.storage, 0))
            bounds = tuple((at(a, 0), at(b, 0)) for a, b in access.bounds)
            waits += self.accesses[unit.unit].conflicts(key, bounds, access.write)
            for other in self.program.storages.aliases.get(key[1], ()):
                waits += self.accesses[unit.unit].conflicts((key[0], other), (), access.write)
            marks.append((key, bounds, access.write))
        return waits, marks

    def job(
        self, unit: UnitState, pc: int, row: Row, engine: int, start: Callable[[Gate], Gate], *more: Gate
    ) -> Gate:
        """Queue a command on an engine: it starts when engine and hazards allow.

        ``start`` is called with the gate to open at the end and returns the gate that frees the engine.
        """
        waits, marks = self.gates(unit, row)
        done, freed = Gate(), Gate()
        for key, bounds, write in marks:
            self.accesses[unit.unit].add(key, bounds, write, done)
        if any(a.shared for a in row.accesses):
            self.touched[unit.unit].append(done)
        before = self.tails[unit.unit][engine]
        self.tails[unit.unit][engine] = freed

        def go() -> None:
            after([start(done)], freed.unlock)

        after([before, *waits, *more], go)
        return done

    def engine(self, pc: int, unit: UnitState, busy: int, latency: int, done: Gate) -> Gate:
        freed = Gate()
        now = self.clock.now
        self.note(unit, pc, now, None)
        self.clock.at(now + busy, freed.unlock)
        self.clock.at(now + busy + latency, lambda: self.finish(unit, pc, done))
        return freed

    def finish(self, unit: UnitState, pc: int, done: Gate) -> None:
        self.note(unit, pc, None, self.clock.now)
        done.unlock()

    def do_work(self, unit: UnitState, op: Any, pc: int) -> bool:
        def start(done: Gate) -> Gate:
            if op.resource is None:
                return self.engine(pc, unit, op.busy_ps, op.latency_ps, done)
            freed = Gate()

            def granted() -> None:
                inner = self.engine(pc, unit, op.busy_ps, op.latency_ps, done)
                after([inner], freed.unlock)

            key = (op.flow, op.number * PIECES, 0)
            server = self.server(op.resource)
            self.clock.ask(self.clock.now, key, lambda: server.request(op.busy_ps, granted))
            return freed

        self.job(unit, pc, op.row, op.engine, start)
        return True

    # transfers

    def _moving(
        self, unit: UnitState, op: Any, pc: int, done: Gate, landed: Action, until_left: bool
    ) -> Gate:
        """Start a transfer; its engine is free when the source is, ``done`` opens then or on arrival."""
        freed = Gate()

        def left() -> None:
            if until_left:
                self.finish(unit, pc, done)
            freed.unlock()

        def arrive() -> None:
            if not until_left:
                self.finish(unit, pc, done)
            landed()

        self.transfer(op, left, arrive, lambda: self.note(unit, pc, self.clock.now, None))
        return freed

    def do_copy(self, unit: UnitState, op: Any, pc: int) -> bool:
        def start(done: Gate) -> Gate:
            return self._moving(unit, op, pc, done, lambda: None, until_left=False)

        self.job(unit, pc, op.row, op.engine, start)
        return True

    def do_send(self, unit: UnitState, op: Any, pc: int) -> bool:
        queue, slots = op.link.queue, op.link.channel.slots
        if op.number >= slots and op.number - slots not in self.returned[queue]:
            return self.park(unit, ("credit", queue))

        def arrive() -> None:
            self.last = max(self.last, self.clock.now)
            self.arrived[queue].append(self.clock.now)
            self.wake(("data", queue))
            self.wake(("any", queue))

        def start(done: Gate) -> Gate:
            return self._moving(unit, op, pc, done, arrive, until_left=True)

        self.job(unit, pc, op.row, op.engine, start, *self.touched[unit.unit])
        return True

    # receiving

    def take(self, unit: UnitState, pc: int, queue: int, number: int) -> bool:
        if unit.start[pc] is None:
            unit.start[pc] = self.clock.now
        if len(self.arrived[queue]) <= number:
            return self.park(unit, ("data", queue))
        self.note(unit, pc, None, self.clock.now)
        return True

    def release(self, unit: UnitState, pc: int, queue: int, number: int, credit_ps: int, row: Row) -> None:
        key = (None, at(row.slot, 0))
        waits = self.accesses[unit.unit].conflicts(key, (), True)
        now = self.clock.now

        def free() -> None:
            self.note(unit, pc, now, self.clock.now)
            self.clock.at(self.clock.now + credit_ps, lambda: self.credit(queue, number))

        after(waits, free)

    def credit(self, queue: int, number: int) -> None:
        self.returned[queue].add(number)
        self.wake(("credit", queue))

    def do_receive(self, unit: UnitState, op: Any, pc: int) -> bool:
        queue = op.link.queue
        if len(self.arrived[queue]) <= op.key:
            return self.park(unit, ("data", queue))

        def landed() -> None:
            later = self.clock.now + op.link.credit_ps
            self.clock.at(later, lambda: self.credit(queue, op.key))

        def start(done: Gate) -> Gate:
            return self._moving(unit, op, pc, done, landed, until_left=False)

        self.job(unit, pc, op.row, op.engine, start)
        return True

    def do_any(self, unit: UnitState, op: Any, pc: int) -> bool:
        if op.value:
            return True
        if unit.start[pc] is None:
            unit.start[pc] = self.clock.now
        self.clock.decide(lambda: self.choose(unit, op, pc))
        return False

    def choose(self, unit: UnitState, op: Any, pc: int) -> None:
        if op.value:
            return
        found = [
            (self.arrived[link.queue][number], link.member)
            for link, number in zip(op.link, op.key, strict=True)
            if len(self.arrived[link.queue]) > number
        ]
        if not found:
            for link in op.link:
                self.parked[("any", link.queue)].append(unit)
            return
        op.value, op.number = 1, min(found)[1]
        for link in op.link:
            waiting = self.parked[("any", link.queue)]
            self.parked[("any", link.queue)] = [u for u in waiting if u is not unit]
        self.choices.setdefault(unit.unit, []).append(op.number)
        self.note(unit, pc, None, self.clock.now)
        self.issue(unit)

    # scalars, flags, meetings

    def do_read(self, unit: UnitState, op: Any, pc: int) -> bool:
        waits, _ = self.gates(unit, op.row)
        closed = [g for g in waits if not g.open]
        if closed:
            after(closed, lambda: self.issue(unit))
            return False
        self.note(unit, pc, self.clock.now, self.clock.now)
        return True

    def do_signal(self, unit: UnitState, op: Any, pc: int) -> bool:
        now = self.clock.now

        def gone() -> None:
            self.note(unit, pc, now, self.clock.now)
            self.clock.at(self.clock.now + op.delay_ps, raised)

        def raised() -> None:
            self.last = max(self.last, self.clock.now)
            self.flags[op.key] += op.value
            self.wake(("flag", op.key))

        after(list(self.touched[unit.unit]), gone)
        return True

    def do_wait(self, unit: UnitState, op: Any, pc: int) -> bool:
        if unit.start[pc] is None:
            unit.start[pc] = self.clock.now
        if self.flags[op.key] < op.value:
            return self.park(unit, ("flag", op.key))
        self.note(unit, pc, None, self.clock.now)
        return True

    def do_meet(self, unit: UnitState, op: Any, pc: int) -> bool:
        if op.flow == -1:
            self.note(unit, pc, None, self.clock.now)
            return True
        if unit.start[pc] is not None:
            return False
        unit.start[pc] = self.clock.now
        waits, marks = self.gates(unit, op.row)
        done = Gate()
        for key, bounds, write in marks:
            self.accesses[unit.unit].add(key, bounds, write, done)

        def here() -> None:
            came = self.meetings[op.key]
            came.append((unit, op, 0))
            if len(came) == op.value:
                self.clock.at(self.clock.now + op.delay_ps, everybody)

        def everybody() -> None:
            for _, other, _ in self.meetings[op.key]:
                other.flow = -1
                other.key_done.unlock()
            for member, _, _ in self.meetings[op.key]:
                self.issue(member)

        op.key_done = done
        after([*self.touched[unit.unit], *waits], here)
        return False
