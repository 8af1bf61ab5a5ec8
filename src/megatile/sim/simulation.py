"""Plans on one machine: their tables, the engine's state, and the answers to what the engine asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import monotonic
from typing import Any, ClassVar

import numpy as np

from megatile.core.errors import did_you_mean
from megatile.core.limits import HeldSignals, held_signals
from megatile.core.progress import tell
from megatile.core.quantities import format_time
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.sim import plain, state as st
from megatile.sim.arena import LAYOUT, Arena
from megatile.sim.compiled import compiled, is_compiled
from megatile.sim.data import Scalars
from megatile.sim.instructions import WORK, InstructionRow, WorkRow
from megatile.sim.launch_rows import LaunchRows, TensorNumbers
from megatile.sim.occupancy import Occupancy
from megatile.sim.paths import Paths
from megatile.sim.queries import MachineQueries, QueueMisuse
from megatile.sim.sharing import find_shared
from megatile.sim.state import (
    NONE,
    Answer,
    Event,
    LaunchQueue,
    LaunchRow,
    Question,
    Queue,
    UnitRow,
)
from megatile.sim.table import TABLES, CodeTables, CommandTable, flat, tabulated
from megatile.timing.machine_timing import TimingError
from megatile.timing.resources import Resources

ENGINES = ("compiled", "plain")
"""How the engine runs: as machine code, or as the Python that it is translated from."""
WARM_UP = 4000
"""Instructions that a process runs uncompiled before it loads the compiled engine."""
RUN_AHEAD = 3
"""Unfinished commands from which on an instance need not run further ahead."""
MAX_IN_FLIGHT = 1 << 20
"""Commands in flight, about 0.7 GB: no instance may then have a 64th of them."""
EVERYTHING = 1 << 40
"""More commands than any run records."""
MAX_RECORDS = 1 << 20
"""Commands that are recorded unless more are asked for."""
SLICE = {"compiled": 1 << 15, "plain": 1 << 11}
"""Instructions that the engine runs at first before it checks signals and the time limit."""
LEAST_SLICE, MAX_SLICE, SLICE_SECONDS = 1 << 8, 1 << 24, 0.02
"""Later as many as take about these seconds, within these limits."""
LONG_SECONDS = 1.0
"""From then on a run tells how far it has come."""
NEVER = 1 << 62
"""Picoseconds: later than any event."""


def engine_name(engine: str | None) -> str | None:
    """Return the engine's name, or raise an error that lists the engines."""
    if engine is not None and engine not in ENGINES:
        raise TimingError(
            f"there is no engine '{engine}'", advice=did_you_mean(str(engine), ENGINES, what="engines")
        )
    return engine


class Simulation:
    """The state of one machine: the tables that the engine works on, and who answers its questions."""

    _count: ClassVar[int] = 0
    _steps: ClassVar[int] = 0
    """Instructions that all simulations of this process have run."""

    def __init__(
        self,
        *,
        record: int = MAX_RECORDS,
        engine: str | None = None,
        everything_shared: bool = False,
        contended: bool = True,
        operands: bool = True,
        tensors: TensorNumbers | None = None,
    ) -> None:
        """``record``: how many commands, with ``operands`` or without what they touch."""
        self.code_tables: CodeTables
        """The tables of all plans so far; those of the first plan begin them (`add`)."""
        self.command_tables: dict[tuple[int, int], CommandTable] = {}
        self.launches: list[LaunchRows] = []
        self.idle: dict[int, list[LaunchRows]] = {}
        """By table, launches that have ended: their rows are used again."""
        self.occupancy = Occupancy()
        self._flows = self._serial = 0
        self._long = False
        """Whether a plan has so many commands that the compiled engine is worth loading at once."""
        self.tensors = tensors or TensorNumbers()
        self.lasting_queues: dict[tuple[Any, ...], int] = {}
        """Queues that outlive launches, by level, hardware unit, channel and direction."""
        self.lasting_flags: dict[tuple[str, str], int] = {}
        """The first counters of flags that do, by level and name."""
        self.labels: list[tuple[Any, ...]] = []
        """Of every queue: channel, member, and the instances that receive and send; or their names."""
        self.engine = engine
        self._ran = 0
        """Instructions that launches under way have run."""
        self._spent = 0.0
        """Wall-clock seconds of the instructions that have run."""
        self.most_records = record
        self.answer_count = 0
        self.arena = arena = Arena()
        self.paths = Paths(arena, contended, everything_shared)
        self.operands = operands
        arena.recording = (1 + operands) * int(record > 0)
        arena.record_limit = min(2 * record, arena.size("records") - 1)
        arena.until = NEVER
        Simulation._count += 1
        self._owner = arena.owner = Simulation._count
        self._failure: BaseException | None = None
        self._left = 0
        """Instructions of a slice that were left out."""
        arena.run_ahead, arena.max_in_flight = RUN_AHEAD, MAX_IN_FLIGHT

    @property
    def complete_record(self) -> bool:
        """Whether all that was to be recorded was, or it was too much."""
        return self.arena.record_limit != NONE

    # launches

    def add(
        self,
        plan: pm.Plan,
        resources: Resources,
        scalars: Scalars,
        *,
        at: int | None = None,
        begin: int | None = None,
        addresses: Mapping[str, Any] | None = None,
    ) -> LaunchRows:
        """Submit a plan. Its instances are ready at their start; with ``at`` (when it was submitted, in the
        time of the machine) and ``begin`` (when it reaches the units) after those before them on the same
        units of the hardware."""
        if pm.ReceiveAny in plan.kinds and not self.most_records:  # what it took is found in the records
            self.most_records = EVERYTHING
            self.arena.recording = 1 + self.operands
            self.arena.record_limit = self.arena.size("records") - 1
        key = id(plan), id(resources)
        table = self.command_tables.get(key)
        if table is None:
            if self.command_tables:
                table = CommandTable(plan, self.code_tables)
            else:
                table = tabulated(plan)
                self.code_tables = table.code_tables.copy()
            self.command_tables[key] = table
            self.tabulate()
            if resources.faults.straggler:
                code = self.arena.rows("code")
                code[code[:, InstructionRow.kind] == WORK, WorkRow.straggles] = 1
        idle = self.idle.get(id(table))
        launched = idle.pop() if idle else self._allocate(table, resources)
        launched.scalars = scalars
        begin = resources.start_ps(0) if begin is None else begin
        self._serial += 1
        launched.restart(begin, self._flows, self._serial, self.tensors, addresses)
        self._flows = launched.flows.stop
        if not launched.row[LaunchRow.unfinished]:
            self.at(begin, st.HOSTS, launched.number)
        if at is not None:
            self.occupancy.wait_for_earlier(launched, at)
        starts = [view.start_ps(0) for view in launched.views]
        self.at(begin + min(starts) - starts[0], st.BEGINS, launched.number)
        return launched

    def _allocate(self, table: CommandTable, resources: Resources) -> LaunchRows:
        """Return new rows for a launch, which no other launch uses."""
        self._long |= command_count(table.plan) >= WARM_UP
        launched = LaunchRows(self, table, resources)
        self.launches.append(launched)
        find_shared(self, launched)
        self.arena.jitter |= int(resources.faults.jitter is not None)
        return launched

    def at(self, time: int, phase: int, what: int) -> None:
        """An event from outside: a launch that comes."""
        self.arena.sequence += 1
        plain.engine().push(self.arena.memory, time, phase, what, self.arena.sequence, what)

    def withdraw(self, launched: LaunchRows) -> bool:
        """Let a launch do nothing: each instance ends as soon as those before it are over. False
        where one has begun."""
        arena = self.arena
        if launched.begun:
            return False
        launched.do_nothing()
        heap = arena.rows("events")[: arena.event_count]
        coming = heap[:, Event.key] // st.PHASE == st.BEGINS
        coming &= heap[:, Event.subject] == launched.number
        heap[coming, Event.subject] = NONE
        if coming.any():
            plain.engine().begin_launch(arena.memory, launched.number, arena.clock)
        return True

    def continue_from(self, other: Simulation) -> None:
        """Time and lasting queues as another simulation left them, in which nothing is under way."""
        mine, theirs = self.arena, other.arena
        mine.clock, mine.last, mine.sequence = theirs.clock, theirs.last, theirs.sequence
        mine.record_base = theirs.record_base + theirs.recorded
        mine.words_base = theirs.words_base + theirs.recorded_words
        self._flows, self._serial = other._flows, other._serial
        self.tensors = other.tensors
        self.paths.set_cache_states(other.paths.all_cache_states())
        if other.lasting_flags:
            counters = other.arena.rows("counters")
            self.arena.extend("counters", len(counters))
            self.arena.rows("counters")[: len(counters)] = counters
            self.lasting_flags = dict(other.lasting_flags)
        for key, number in other.lasting_queues.items():
            queue = other.arena.rows("queues")[number].copy()
            slots, ring = int(queue[Queue.slots]), int(queue[Queue.ring])
            queue[Queue.ring] = at = self.arena.extend("slots", slots)
            self.arena.rows("slots")[at : at + slots] = other.arena.rows("slots")[ring : ring + slots]
            self.lasting_queues[key] = self.arena.append("queues", queue)
            self.labels.append(other.label(number))

    def release(self, launched: LaunchRows) -> None:
        """A launch has ended: its rows may be used by another of the same plan, its records are dropped."""
        self.idle.setdefault(id(launched.table), []).append(launched)
        answers, flows, units = self.arena.rows("answers"), launched.flows, launched.offsets[-1]
        asked, flow, actor = answers[:, Answer.question], answers[:, Answer.a], answers[:, Answer.b]
        value, delay = asked == st.ASK_VALUE, asked == st.ASK_DELAY
        value &= (actor >= launched.first) & (actor < launched.first + units)
        delay &= (flow >= flows.start) & (flow < flows.stop)
        answers[value | delay, Answer.question] = st.GONE

    def forget_records(self, active: list[LaunchRows]) -> None:
        """Drop the records before those of launches under way, when they are most of all."""
        arena = self.arena
        for name, base, used, starts in (
            ("records", "record_base", "recorded", [a.first_record for a in active]),
            ("recorded_accesses", "words_base", "recorded_words", [a.first_aux for a in active]),
        ):
            first, count = getattr(arena, base), getattr(arena, used)
            gone = min([start - first for start in starts] + [count])
            if 2 * gone > count:
                rows = self.arena.rows(name)
                rows[: count - gone] = rows[gone:count].copy()
                setattr(arena, base, first + gone)
                setattr(arena, used, count - gone)

    def tabulate(self) -> None:
        """The tables of all plans as arrays."""
        tables, arena = self.code_tables, self.arena
        for name in TABLES:
            used, table = arena.used[name], getattr(tables, name)
            if used < len(table):
                made = tables.made.pop(name, None)
                arena.append(name, flat(table[used:]) if made is None else made)
        at = arena.extend("storages", tables.storage_count - arena.used["storages"])
        if tables.memory_of:
            described, times = zip(*tables.memory_of, strict=True)
            arena.rows("storages")[at : tables.storage_count] = np.repeat(np.array(described), times, axis=0)
            tables.memory_of = []
        arena.set_dimensions(tables.dimensions)

    def launch_of(self, g: int) -> LaunchRows:
        return self.launches[int(self.arena.rows("units")[g, UnitRow.launch])]

    def label(self, queue: int) -> tuple[str, str, str]:
        """Return what a queue is called, and who receives and sends."""
        first, *rest = self.labels[queue]
        if isinstance(first, str):
            return (first, *rest)
        return (first.label(rest[0]), self.name(rest[1]), self.name(rest[2]))

    def name(self, actor: int) -> str:
        """Return where an instance stands."""
        launched = next(k for k in reversed(self.launches) if k.first <= actor)
        return launched.name(*launched.which(actor), int(self.arena.rows("places")[actor]))

    def view(self, g: int) -> tuple[LaunchRows, int, Resources]:
        """Return the launch of an instance, its level there, and the machine as that sees it."""
        launched = self.launch_of(g)
        level = int(self.arena.rows("units")[g, UnitRow.level]) - launched.first_level
        return launched, level, launched.views[level]

    def messages(self, launched: LaunchRows) -> dict[str, dict[int, int]]:
        """Per channel, how many messages were sent to each queue (receiver * members + member)."""
        found: dict[str, dict[int, int]] = {c.name: {} for c in launched.plan.channels}
        queues, places = self.arena.rows("queues"), self.arena.rows("launch_queues")
        for q, (channel, receiver, member) in launched.queue_ends.items():
            described = launched.plan.channels[channel]
            number = receiver * described.members + member
            if not described.installed and queues[q, Queue.sent] != queues[q, Queue.taken]:
                raise QueueMisuse(f"messages of channel '{described.name}' are left in their queues")
            sent = int(places[launched.first_queues[channel] + number, LaunchQueue.sent])
            if sent:
                found[described.name][number] = sent
        return found

    # running

    def run(self, until: int = NEVER, deadline: float | None = None) -> LaunchRows | None:
        """Go on until a launch has ended (it is returned), nothing can go on, or the time is over: no event
        comes before ``until`` (simulated time), or the ``deadline`` (of `time.monotonic`) has passed.

        The engine runs in slices of so many instructions that each takes about SLICE_SECONDS. Deadlines are
        looked at between slices, and handlers of signals are called there, so that what is under way can be
        continued after one that raises.
        """
        with held_signals() as signals:
            answer = partial(self._answer, MachineQueries(self), deadline, signals)
            plain.FUNCTIONS.answering[self._owner] = answer
            try:
                return self._run(until, deadline, signals)
            finally:
                del plain.FUNCTIONS.answering[self._owner]

    def _run(self, until: int, deadline: float | None, signals: HeldSignals) -> LaunchRows | None:
        soon = self.engine == "compiled" or (self.engine is None and (self._long or is_compiled()))
        engine: Any = compiled() if soon else plain.engine()
        slice_, now = SLICE["compiled" if engine is not plain.engine() else "plain"], monotonic()
        began = now
        while True:
            arena = self.arena
            arena.until = until
            warming = engine is plain.engine() and self.engine is None
            steps = min(slice_, max(1, WARM_UP - Simulation._steps)) if warming else slice_
            arena.steps, self._left = steps, 0
            reason = st.STOPPED if arena.stopped else engine.run(arena.memory)
            ran, before, now = steps - arena.steps - self._left, now, monotonic()
            Simulation._steps += ran
            self._ran, self._spent = self._ran + ran, self._spent + now - before
            if reason in (st.FINISHED, st.PAUSED):
                return None
            if reason == st.ENDED:
                launched = self.launches[arena.ended]
                self._ran, self._spent = 0, 0.0
                return launched
            if reason == st.STOPPED:
                self._fail()
            signals.deliver()
            if deadline is not None and now > deadline:
                return None
            if now - began > LONG_SECONDS:
                tell(f"simulating '{self.launches[-1].plan.name}'", self._ran, self._expected())
            if warming and Simulation._steps >= WARM_UP:
                engine, slice_ = compiled(), SLICE["compiled"]
            elif ran == slice_:
                times = SLICE_SECONDS / max(now - before, SLICE_SECONDS / 4)
                slice_ = int(min(MAX_SLICE, max(LEAST_SLICE, slice_ * times)))

    def _answer(self, queries: MachineQueries, deadline: float | None, signals: HeldSignals) -> int:
        """Answer what the engine asks: it calls this in the middle of an instruction (`engine.values.ask`).

        An error cannot pass through machine code. It is kept, ``stopped`` is set, and the engine returns as
        soon as it can; `_fail` then raises the error. Until then whatever else is asked gets NONE. The slice
        also ends early where a signal has come or the time is over: these leave the state as it is."""
        arena = self.arena
        if arena.stopped:
            return NONE
        try:
            question, *asked = arena.rows("asked")[0, : Question.e + 1].tolist()
            found = queries.answer(question, asked)
        except BaseException as error:
            self._failure, arena.stopped, found = error, 1, NONE
        if arena.stopped or signals.came or (deadline is not None and monotonic() > deadline):
            self._left, arena.steps = self._left + arena.steps, 0
        return found

    def _fail(self) -> None:
        """Raise what stopped the engine; its state means nothing any more."""
        arena = self.arena
        if self._failure is None:
            name = next(name for name, at in LAYOUT.bases.items() if at == arena.full)
            self._failure = arena.no_room(name)
        if isinstance(self._failure, QueueMisuse):
            last = arena.ready_count - 1  # whoever issued it
            who = int(arena.rows("ready")[last]) if last >= 0 else 0
            self._failure.launch = arena.units[who].launch
        raise self._failure

    def _expected(self) -> int:
        """Return about how many instructions launches under way run in all."""
        under_way = [x.plan for x in self.launches if x.row[LaunchRow.unfinished]]
        return max(self._ran, sum(command_count(plan, 1) for plan in under_way))

    def how_far(self) -> str:
        """Say how much of the launches under way is done, and how long the rest may take."""
        done = self._ran / max(1, self._expected())
        rest = self._spent * (1 / done - 1) if done else 0.0
        more = f"; the rest may take {format_time(rest * 1e12)}" if rest else ""
        return f"about {done:.2%} is done, {format_time(self.arena.last)} of simulated time{more}"

    @property
    def records(self) -> Any:
        """The rows of `records` that are in use."""
        return self.arena.rows("records")[: self.arena.recorded]
