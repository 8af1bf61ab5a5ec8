"""From the times of a run to a Trace: every operation an event, with the event that released it.

The evaluators only say when; why follows from the times: an operation's cause is, among all it had to wait
for, what ended last.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from megatile.plan import model as pm
from megatile.sim.program import COPY, GENERAL, RECEIVE, RELEASE, RUN, SEND, TAKE, Program, at
from megatile.sim.rows import Row
from megatile.sim.stuck import source_of
from megatile.sim.times import Times
from megatile.trace import LAUNCH, Trace, TraceBuilder

MAX_COUNTERS = 256
Reason = tuple[int, int]
"""(when it ended, number of the event); -1 where no event stands for it."""


class Annotation:
    """Makes the Trace of one recorded run."""

    def __init__(self, program: Program, times: Times) -> None:
        self.program = program
        self.times = times
        self.builder = TraceBuilder(machine=program.machine.hda.name)
        self.names = program.machine.names
        self.sends: dict[tuple[int, int], int] = {}
        self.receives: list[tuple[int, tuple[int, int]]] = []
        self.released_by: list[tuple[int, tuple[int, int]]] = []
        self.waits_for_credit: list[tuple[int, tuple[int, int], Reason]] = []
        self.returns: dict[tuple[int, int], Reason] = {}
        self.signals: dict[Any, list[tuple[int, int, int]]] = defaultdict(list)
        self.waits: list[tuple[int, Any]] = []
        self.meetings: dict[Any, list[tuple[int, Reason]]] = defaultdict(list)
        self.causes: dict[int, int] = {}
        self.depth: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        self.flying: list[tuple[int, int]] = []
        self.positions: dict[int, tuple[Any, int]] = {}
        for stream in program.plan.streams:
            for position, unit in enumerate(stream.unit_numbers()):
                self.positions[unit] = (stream, position)
        self._texts: dict[Any, str] = {}

    def build(self) -> Trace:
        for unit in range(self.program.plan.units):
            UnitNotes(self, unit).run()
        self._link_events()
        trace = self.builder.build()
        columns = dict(trace.columns)
        cause = columns["cause"].copy()
        for event, why in self.causes.items():
            cause[event] = why
        columns["cause"] = cause
        return Trace(
            trace.units, trace.engines, trace.operations, trace.operands, trace.sources, columns,
            trace.flows, trace.counters, trace.machine,
        )  # fmt: skip

    def _link_events(self) -> None:
        """What crosses units: messages, credits, signals, meetings; and the counters."""
        for event, message in self.receives:
            sender = self.sends.get(message)
            if sender is not None:
                self.builder.flow(sender, event)
        for event, message in self.released_by:
            self.causes[event] = self.sends.get(message, -1)
        for event, message, other in self.waits_for_credit:
            returned = self.returns.get(message)
            if returned is not None:
                arrives = returned[0] + self._credit_ps(message[0])
                self.causes[event] = returned[1] if arrives >= other[0] else other[1]
        for event, key in self.waits:
            raised = sorted(self.signals.get(key, []))
            if raised:
                self.causes[event] = raised[-1][1]
        for came in self.meetings.values():
            last = max(came, key=lambda c: c[1][0])
            for event, _ in came:
                self.causes[event] = last[1][1]
        self._counters()

    def _credit_ps(self, queue: int) -> int:
        return self.program.known_link(queue).credit_ps

    def _counters(self) -> None:
        for label in sorted(self.depth)[:MAX_COUNTERS]:
            self._counter(f"queue {label}", self.depth[label])
        if self.flying:
            self._counter("messages on links", self.flying)

    def _counter(self, name: str, steps: list[tuple[int, int]]) -> None:
        times: list[int] = []
        values: list[int] = []
        level = 0
        for time, change in sorted(steps):
            level += change
            if times and times[-1] == time:
                values[-1] = level
            else:
                times.append(time)
                values.append(level)
        self.builder.counter(name, times, values)

    def operand_text(self, row: Row, position: int) -> str:
        """The blocks a row touches, with their memories: ``local:x[0:4] -> common:y``."""
        reads: list[str] = []
        writes: list[str] = []
        for access in row.accesses:
            storage = at(access.storage, position)
            bounds = tuple((at(a, position), at(b, position)) for a, b in access.bounds)
            owner = at(access.owner, position)
            key = (storage, bounds, owner)
            text = self._texts.get(key)
            if text is None:
                text = self.program.storages.describe(storage, bounds)
                text += f"@{owner}" if owner is not None else ""
                self._texts[key] = text
            (writes if access.write else reads).append(text)
        left = ", ".join(reads)
        return f"{left} -> {', '.join(writes)}" if writes else left


class UnitNotes:
    """Goes through one unit's operations in order and notes each with its cause."""

    def __init__(self, annotation: Annotation, unit: int) -> None:
        self.a = annotation
        self.program = annotation.program
        self.unit = unit
        lazy = annotation.program.everything_shared
        self.position = 0 if lazy else annotation.positions.get(unit, (None, 0))[1]
        self.issue: Reason = (0, -1)
        self.engine: dict[int, Reason] = {}
        self.writers: dict[int, Reason] = {}
        self.readers: dict[int, Reason] = {}
        self.touched: Reason = (0, -1)
        self.block = self.program.regions.block

    def run(self) -> None:
        times = self.a.times
        started = self.program.machine.start_ps(self.unit)
        if started:
            self.issue = (started, self._launch(started))
        operations, starts, ends = times.operations[self.unit], times.start[self.unit], times.end[self.unit]
        for operation, start, end in zip(operations, starts, ends, strict=True):
            kind = operation[0]
            if kind == RUN:
                _, (engine, _, _, row), reads, writes = operation
                blocks = [self.block(b) for b in reads], [self.block(b) for b in writes]
                self.work(row, engine, *blocks, start, end, row.statement.operation)
            elif kind == SEND:
                _, info, number, block, row = operation
                self.send(row, info[0], [self.block(block)], start, end, info[5], number)
            elif kind == RECEIVE:
                _, (queue, link), number, slot, row = operation
                self.receive(row, queue, number, slot, start, end, link)
            elif kind == RELEASE:
                _, (queue, slot, _, link), number, _ = operation
                self.release(queue, number, slot, end, link)
            elif kind == TAKE:
                _, (queue, engine, _, _, _, link), number, block, row = operation
                self.take(row, engine, [], [self.block(block)], start, end, link, number)
            elif kind == COPY:
                _, info, _, reads, writes, row = operation
                blocks = [self.block(b) for b in reads], [self.block(b) for b in writes]
                self.work(row, info[0], *blocks, start, end, row.statement.operation)
            elif kind == GENERAL:
                self.general(operation[1], start, end)

    def event(
        self, row: Row, engine: str, name: str, start: int, end: int, reasons: list[Reason], nbytes: int = 0
    ) -> int:
        cause = max(reasons, default=(0, -1), key=lambda r: r[0])
        return self.a.builder.add(
            unit=self.a.names[self.unit],
            engine=engine,
            operation=name,
            start_ps=start,
            end_ps=max(start, end),
            bytes=int(nbytes),
            cause=cause[1],
            source=source_of(row.statement.source),
            operand=self.a.operand_text(row, self.position),
        )

    def _launch(self, started: int) -> int:
        """The launch (and the install of the queues before it) on its way from the host."""
        unit = self.a.names[self.unit]
        return self.a.builder.add(unit=unit, engine="control", operation=LAUNCH, start_ps=0, end_ps=started)

    def _hazards(self, reads: Any, writes: Any) -> list[Reason]:
        found = [self.writers[b] for look, _, _ in reads for b in look if b in self.writers]
        for written, read, _ in writes:
            found += [self.writers[b] for b in written if b in self.writers]
            found += [self.readers[b] for b in read if b in self.readers]
        return found

    def _mark(self, reads: Any, writes: Any, reason: Reason) -> None:
        for _, _, block in reads:
            self.readers[block] = max(self.readers.get(block, reason), reason)
        for _, _, block in writes:
            self.writers[block] = reason

    def _reasons(self, engine: int, reads: Any, writes: Any) -> list[Reason]:
        return [self.issue, self.engine.get(engine, (0, -1)), *self._hazards(reads, writes)]

    def work(
        self, row: Row, engine: int, reads: Any, writes: Any, start: int, end: int, name: str, nbytes: int = 0
    ) -> int:
        reasons = self._reasons(engine, reads, writes)
        size = nbytes or at(row.nbytes, self.position)
        number = self.event(row, self.program.engine_names[engine], name, start, end, reasons, size)
        self._mark(reads, writes, (end, number))
        self.engine[engine] = (end, number)
        return number

    def send(self, row: Row, engine: int, reads: Any, start: int, end: int, link: Any, number: int) -> None:
        reasons = [*self._reasons(engine, reads, ()), self.touched]
        size = at(row.nbytes, self.position)
        event = self.event(row, self.program.engine_names[engine], "send", start, end, reasons, size)
        self.a.sends[(link.queue, number)] = event
        slots = link.channel.slots
        if number >= slots:
            best = max(reasons, key=lambda r: r[0])
            self.a.waits_for_credit.append((event, (link.queue, number - slots), best))
        self._mark(reads, (), (end, event))
        self.engine[engine] = (end, event)
        arrival = self.a.times.arrival[link.queue][number]
        self.a.flying += [(start, 1), (arrival, -1)]

    def _arrived(self, event: int, queue: int, number: int, link: Any, start: int) -> None:
        self.a.receives.append((event, (queue, number)))
        arrival = self.a.times.arrival[queue][number]
        label = f"{self.a.names[self.unit]} {link.label}"
        self.a.depth[label].append((arrival, 1))
        if arrival >= start:
            self.a.released_by.append((event, (queue, number)))

    def receive(self, row: Row, queue: int, number: int, slot: int, start: int, end: int, link: Any) -> None:
        event = self.event(row, "channel", "receive", start, end, [self.issue], at(row.nbytes, self.position))
        self._arrived(event, queue, number, link, start)
        self.issue = (end, event)
        self.writers[slot] = (end, event)

    def release(self, queue: int, number: int, slot: int, end: int, link: Any) -> None:
        reasons = [self.issue, *self._hazards((), [self.block(slot)])]
        self.a.returns[(queue, number)] = (end, max(reasons, key=lambda r: r[0])[1])
        self.a.depth[f"{self.a.names[self.unit]} {link.label}"].append((end, -1))

    def take(
        self, row: Row, engine: int, reads: Any, writes: Any, start: int, end: int, link: Any, number: int
    ) -> None:
        arrival = self.a.times.arrival[link.queue][number]
        message = (link.queue, number)
        begin = self.issue[0]
        if arrival > begin:
            size = at(row.nbytes, self.position)
            waited = self.event(row, "channel", "receive", begin, arrival, [self.issue], size)
            self.a.receives.append((waited, message))
            self.a.released_by.append((waited, message))
            self.issue = (arrival, waited)
        event = self.work(row, engine, reads, writes, start, end, "receive into")
        if arrival <= begin:
            self.a.receives.append((event, message))
        self.a.returns[message] = (end, event)
        label = f"{self.a.names[self.unit]} {link.label}"
        self.a.depth[label] += [(arrival, 1), (end, -1)]

    def general(self, op: Any, start: int, end: int) -> None:
        row = op.row
        if op.kind in ("work", "copy"):
            name = row.statement.operation
            event = self.work(row, op.engine, op.reads, op.writes, start, end, name, op.nbytes)
            if op.shared:
                self.touched = max(self.touched, (end, event))
        elif op.kind == "send":
            self.send(row, op.engine, op.reads, start, end, op.link, op.number)
        elif op.kind == "receive":
            self.take(row, op.engine, op.reads, op.writes, start, end, op.link, op.key)
        elif op.kind == "signal":
            event = self.event(row, "channel", "signal", start, end, [self.issue, self.touched])
            self.a.signals[op.key].append((end + op.delay_ps, event, op.value))
        else:
            self._waiting(op, start, end)

    def _waiting(self, op: Any, start: int, end: int) -> None:
        """Commands that hold up the unit: any-receives, reads of scalars, waits, meetings."""
        names = {"any": "receive any", "read": "read_scalar", "wait": "wait"}
        statement = op.row.statement
        name = statement.kind if isinstance(statement, pm.Collective) else names[op.kind]
        reasons = [self.issue, *self._hazards(op.reads, op.writes)]
        event = self.event(op.row, "control", name, start, end, reasons, op.nbytes)
        if op.kind == "wait":
            self.a.waits.append((event, op.key))
        elif op.kind == "meet":
            before = max([*reasons, self.touched], key=lambda r: r[0])
            self.a.meetings[op.key].append((event, before))
            self._mark(op.reads, op.writes, (end, event))
        self.issue = (end, event)


def annotate(program: Program, times: Times) -> Trace:
    """The Trace of a recorded run."""
    return Annotation(program, times).build()
