"""The general path of run-ahead: times that may be pending, and shared resources.

Every rule is called with a unit and one operation and returns whether the unit may go on; if not, the
rule has seen to it that the unit is woken when trying again makes sense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatile.sim.decisions import Decisions, short
from megatile.sim.pending import Begin, Job, Pending, Time, known, later, when
from megatile.sim.program import (
    CONSUME,
    COPY,
    GENERAL,
    LOAD,
    MEET,
    PUT,
    RECEIVE,
    RELEASE,
    RUN,
    SEND,
    SIGNAL,
    TAKE,
    Operation,
)  # fmt: skip
from megatile.sim.stuck import wait_graph
from megatile.sim.train import Train, Ways
from megatile.sim.transfers import PIECES, Move
from megatile.trace import WaitGraph

if TYPE_CHECKING:
    from megatile.sim.runahead import RunAhead
    from megatile.sim.unit import UnitState


class GeneralRules(Decisions):
    """All operations, with times that may be unknown."""

    def __init__(self, run: RunAhead) -> None:
        super().__init__(run)
        self._written, self._read = run.program.regions.written, run.program.regions.read
        self._ways = Ways(run.transfers)
        self._rules: dict[str, Callable[[UnitState, Operation], bool]] = {
            "work": self.work,
            "copy": self.copy,
            "send": self.send,
            "receive": self.receive_into,
            "any": self.receive_any,
            "read": self.read,
            "signal": self.signal,
            "wait": self.wait,
            "meet": self.meet,
        }

    def close(self) -> None:
        """Let go of the run; nothing more can be applied."""
        self._rules.clear()
        del self.run

    def apply(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        kind = operation[0]
        if kind == GENERAL:
            return self._rules[operation[1].kind](unit, operation[1])
        block_of = self.run.program.regions.block
        if kind in (COPY, LOAD):
            return self.plain_copy(unit, operation)
        if kind == PUT:
            _, (engine, busy, latency, row), reads, writes = operation
            put = Operation("copy", row, unit.unit, engine, busy, latency, reads, writes, shared=True)
            return self.copy(unit, put)
        if kind == SIGNAL:
            return self.raise_flag(unit, operation)
        if kind == MEET:
            return self.wait_to_meet(unit)
        if kind == RUN:
            return self.plain_work(unit, operation)
        if kind == CONSUME:
            return self.consume(unit, operation)
        if kind == SEND:
            _, info, number, block, row = operation
            engine, _, _, busy, latency, link, nbytes = info
            reads = (block_of(block),)
            made = Operation("send", row, unit.unit, engine, busy, latency, reads, link=link)
            made.number, made.nbytes = number, nbytes
            return self.send(unit, made)
        if kind == RECEIVE:
            return self.receive(unit, operation)
        if kind == TAKE:
            _, (_, engine, busy, latency, _, link), number, block, row = operation
            writes = (block_of(block),)
            made = Operation("receive", row, unit.unit, engine, busy, latency, (), writes, link=link)
            made.key = number
            return self.receive_into(unit, made)
        assert kind == RELEASE
        return self.release(unit, operation)

    # engines

    def work(self, unit: UnitState, op: Operation) -> bool:
        """A command on an engine, its own or shared."""
        start, busy_until, finished = Pending(), Pending(), Pending()

        def begin(time: int) -> None:
            start.set(time)
            busy_until.set(time + op.busy_ps)
            finished.set(time + op.busy_ps + op.latency_ps)

        def ready(time: int) -> None:
            if op.resource is None:
                begin(time)
            else:
                key = (op.flow, op.number * PIECES, 0)
                self.run.transfers.request(time, key, op.resource, op.busy_ps, begin)

        when([unit.free[op.engine], *self.hazards(unit, op.reads, op.writes)], unit.now, ready)
        unit.free[op.engine] = short(busy_until)
        self.mark(unit, op, short(finished), short(finished))
        self.note(unit, short(start), short(finished))
        return True

    def copy(self, unit: UnitState, op: Operation) -> bool:
        """A transfer between memories; its way may be shared."""
        times = [unit.free[op.engine], *self.hazards(unit, op.reads, op.writes)]
        start, left, arrived = self._transfer(op, times, unit.now)
        unit.free[op.engine] = left
        self.mark(unit, op, arrived, arrived)
        self.note(unit, start, arrived)
        return True

    def _waits(self, unit: UnitState, engine: int, reads: Any, writes: Any) -> tuple[list[Pending], int]:
        """What a command on the unit's own blocks waits for: unknown times, and the latest known one."""
        written, read, readers, writers = self._written, self._read, unit.readers, unit.writers
        times = [unit.free[engine]]
        for block in reads:
            for other in written[block]:
                times.append(writers[other])
        for block in writes:
            for other in written[block]:
                times.append(writers[other])
            for other in read[block]:
                times.append(readers[other])
        least = unit.now
        unknown: list[Pending] = []
        for time in times:
            if type(time) is not int:
                value = time.value
                if value is None:
                    if time not in unknown:
                        unknown.append(time)
                    continue
                time = value
            if time > least:
                least = time
        return unknown, least

    def plain_work(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        """A command on an engine of its own whose start is not known yet."""
        _, (engine, busy, latency, row), reads, writes = operation
        if latency:
            block = self.run.program.regions.block
            made = Operation("work", row, unit.unit, engine, busy, latency)
            made.reads, made.writes = tuple(map(block, reads)), tuple(map(block, writes))
            return self.work(unit, made)
        job = Job(engine, busy)
        job.begin_after(*self._waits(unit, engine, reads, writes))
        end = short(job)
        unit.free[engine] = end
        readers = unit.readers
        for block in reads:
            old = readers[block]
            earlier = old <= unit.now if type(old) is int else type(old) is Job and old.engine == engine
            readers[block] = end if earlier else later(old, end)
        for block in writes:
            unit.writers[block] = end
        if self.run.record:
            self.note(unit, job.start if type(end) is int else Begin(job), end)
        return True

    def plain_copy(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        """A copy between the unit's own blocks over a contended way."""
        _, info, number, reads, writes, _ = operation
        engine, path, nbytes, flow = info[:4]
        readers = unit.readers
        move = Move(self.run.transfers, path, nbytes, flow, number)
        if self.run.record:
            move.watch = Pending()
        move.begin_after(*self._waits(unit, engine, reads, writes))
        arrived = short(move)
        unit.free[engine] = short(move.left)
        for block in reads:
            # Who reads what nobody writes need not be remembered.
            readers[block] = later(readers[block], arrived) if self._written[block] else 0
        for block in writes:
            unit.writers[block] = arrived
        if move.watch is not None:
            self.note(unit, short(move.watch), arrived)
        return True

    def _transfer(self, op: Operation, times: list[Time], least: int) -> tuple[Time, Time, Time]:
        """Start a transfer when ``times`` allow: its start, its source free again, its arrival."""
        if op.resource is None and op.path is not None and not op.path.cuts(op.nbytes):
            move = Move(self.run.transfers, op.path, op.nbytes, op.flow, op.number, op.delay_ps)
            move.watch = Pending()
            move.after(times, least)
            return short(move.watch), short(move.left), short(move)
        start, left, arrived = Pending(), Pending(), Pending()
        self._cut_transfer(op, times, least, start, left, arrived)
        return short(start), short(left), short(arrived)

    def _cut_transfer(
        self, op: Operation, times: list[Time], least: int, start: Pending, left: Pending, arrived: Pending
    ) -> None:
        def landed(tail: int) -> None:
            arrived.set(tail)
            self.run.last_ps = max(self.run.last_ps, tail)

        def begin(time: int) -> None:
            start.set(time)
            if op.path is None:
                left.set(time + op.busy_ps)
                landed(time + op.busy_ps + op.latency_ps)
            else:
                self.run.transfers.start(
                    time, op.path, op.nbytes, op.flow, op.number, op.delay_ps, left.set, landed
                )

        def ready(time: int) -> None:
            if op.resource is None:
                begin(time)
            else:
                # Units that share a DMA engine take turns for as long as it is busy with a transfer.
                key = (op.flow, op.number * PIECES, -1)
                self.run.transfers.request(time, key, op.resource, op.busy_ps, begin)

        when(times, least, ready)

    # channels

    def send(self, unit: UnitState, op: Operation) -> bool:
        run, link = self.run, op.link
        slots = link.channel.slots
        if op.number >= slots:
            credit = run.credits[link.queue].get(op.number - slots)
            if credit is None:
                run.wait_credit[link.queue] = unit
                return False
            value = known(credit)
            if value is None:
                run.resume_when(unit, credit)
                return False
            unit.now = max(unit.now, value)
        times = [unit.free[op.engine], unit.touched, *self.hazards(unit, op.reads, ())]
        start, left, arrived = self._transfer(op, times, unit.now)
        unit.free[op.engine] = left
        self.mark(unit, op, left, 0)
        run.arrivals[link.queue].append(arrived)
        run.wake(run.wait_data, link.queue)
        self._arrived_any(link.queue)
        self.note(unit, start, left)
        return True

    def ship(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        """`send` of a unit's own block over a contended way, in fewer steps."""
        _, (engine, queue, slots, path, _, _, size), number, block, _ = operation
        run = self.run
        if number >= slots:
            credit = run.credits[queue].get(number - slots)
            if credit is None:
                run.wait_credit[queue] = unit
                return False
            if type(credit) is not int:
                if credit.value is None:
                    run.resume_when(unit, credit)
                    return False
                credit = credit.value
            if credit > unit.now:
                unit.now = credit
        if path.cuts(size):
            move: Move = Train(self._ways, path, size, queue, number)
        else:
            move = Move(run.transfers, path, size, queue, number)
        move.begin_after(*self._waits(unit, engine, (block,), ()))
        left = short(move.left)
        unit.free[engine] = left
        old = unit.readers[block]
        unit.readers[block] = left if type(old) is int and old <= unit.now else later(old, left)
        run.arrivals[queue].append(short(move))
        if queue in run.wait_data:
            run.ready.append(run.wait_data.pop(queue))
        return True

    def consume(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        """A message is received, worked on and released: the three operations one by one."""
        _, (queue, engine, busy, credit_ps, slot, link, row), number, reads, writes = operation
        if not self._take(unit, queue, number, slot):
            return False
        self.plain_work(unit, (RUN, (engine, busy, 0, row), (*reads, slot), writes))
        return self.release(unit, (RELEASE, (queue, slot, credit_ps, link), number, row))

    def receive(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        _, (queue, _), number, slot, _ = operation
        return self._take(unit, queue, number, slot)

    def _take(self, unit: UnitState, queue: int, number: int, slot: int) -> bool:
        arrived = self.run.arrivals[queue]
        if len(arrived) <= number:
            self.run.wait_data[queue] = unit
            return False
        value = known(arrived[number])
        if value is None:
            self.run.resume_when(unit, arrived[number])
            return False
        begin = unit.now
        unit.now = max(unit.now, value)
        unit.writers[slot] = value
        self.note(unit, begin, unit.now)
        return True

    def release(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        _, (queue, slot, credit_ps, _), number, _ = operation
        times = self.hazards(unit, (), (self.run.program.regions.block(slot),))
        self._give_back(unit, queue, number, credit_ps, times)
        return True

    def _give_back(self, unit: UnitState, queue: int, number: int, credit_ps: int, times: list[Time]) -> None:
        released, credit = Pending(), Pending()

        def free(time: int) -> None:
            released.set(time)
            credit.set(time + credit_ps)

        when(times, unit.now, free)
        self.run.credits[queue][number] = short(credit)
        self.run.wake(self.run.wait_credit, queue)
        self.note(unit, unit.now, short(released))

    def receive_into(self, unit: UnitState, op: Operation) -> bool:
        """Take a message, copy it out of its slot and give the slot back after the copy."""
        run, link, number = self.run, op.link, op.key
        arrived = run.arrivals[link.queue]
        if len(arrived) <= number:
            run.wait_data[link.queue] = unit
            return False
        value = known(arrived[number])
        if value is None:
            run.resume_when(unit, arrived[number])
            return False
        unit.now = max(unit.now, value)
        times = [unit.free[op.engine], *self.hazards(unit, op.reads, op.writes)]
        start, left, landed = self._transfer(op, times, unit.now)
        unit.free[op.engine] = left
        self.mark(unit, op, landed, landed)
        credit = Pending()
        when([landed], 0, lambda time: credit.set(time + link.credit_ps))
        run.credits[link.queue][number] = short(credit)
        run.wake(run.wait_credit, link.queue)
        self.note(unit, start, landed)
        return True

    # deadlock

    def wait_graph(self, time_ps: int) -> WaitGraph:
        return wait_graph(self.run, time_ps)
