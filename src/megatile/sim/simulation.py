"""Plans on one machine: their tables, the engine's state, and the answers to what the engine asks."""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import prod
from time import monotonic
from typing import Any, ClassVar

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import did_you_mean
from megatile.core.limits import HeldSignals, held_signals
from megatile.core.progress import tell
from megatile.core.quantities import format_time
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.residency import units_below
from megatile.sim import plain, state as st
from megatile.sim.arena import LAYOUT, Arena
from megatile.sim.compiled import compiled, is_compiled
from megatile.sim.data import Assumed, Scalars
from megatile.sim.install import place_numbers
from megatile.sim.instances import Instances
from megatile.sim.instructions import WORK, End, Instruction, Work
from megatile.sim.paths import Paths
from megatile.sim.queries import MachineQueries, QueueMisuse
from megatile.sim.sharing import find_shared
from megatile.sim.state import (
    NONE,
    Answer,
    CacheRow,
    ChannelRow,
    Event,
    FlagRow,
    LaunchQueue,
    LaunchRow,
    LevelRow,
    Pool,
    Question,
    Queue,
    Storage,
    UnitRow,
)
from megatile.sim.table import TABLES, CommandTable, Rows, tabulated
from megatile.timing.resources import Resources
from megatile.timing.view import TimingError

ENGINES = ("compiled", "plain")
"""How the engine runs: as machine code, or as the Python that it is translated from."""
WARM_UP = 4000
"""Instructions that a process runs uncompiled before it loads the compiled engine."""
RUN_AHEAD = 3
"""Unfinished commands from which on an instance need not run further ahead."""
EVERYTHING = 1 << 40
"""More commands than any run records."""
MAX_RECORDS = 1 << 20
"""Commands that are recorded unless more are asked for."""
SLICE = {"compiled": 1 << 15, "plain": 1 << 11}
"""Instructions that the engine runs at first before it checks signals and the time limit."""
LEAST_SLICE, MOST_SLICE, SLICE_SECONDS = 1 << 8, 1 << 24, 0.02
"""Later as many as take about these seconds, within these limits."""
LONG_SECONDS = 1.0
"""From then on a run tells how far it has come."""
NEVER = 1 << 62


def engine_name(engine: str | None) -> str | None:
    """Return the engine's name, or raise an error that lists the engines."""
    if engine is not None and engine not in ENGINES:
        raise TimingError(
            f"there is no engine '{engine}'", advice=did_you_mean(str(engine), ENGINES, what="engines")
        )
    return engine


class LaunchRows:
    """One plan that was submitted: its instances, and how the machine answers for it."""

    def __init__(self, table: CommandTable, resources: Resources, number: int, first: int) -> None:
        self.table = table
        self.plan = table.plan
        self.resources = resources
        self.scalars: Scalars = Assumed(None)
        self.number = number
        self.first = first
        """Its row among the launches, and its first instance among those of all (`UnitRow.actor`)."""
        self.views = [resources.of(level.name) for level in self.plan.all_levels]
        """The machine as each level sees it."""
        counts = [self.plan.instances(level.name) for level in self.plan.all_levels]
        self.offsets = [0, *accumulate(counts)]
        """The number of the first instance of each level, and of all instances."""
        self.present = table.stream_of[0] != NONE
        """Which units of the first level have a stream; others are in other launches."""
        self.levels = 0
        self.channels = 0
        self.flags = 0
        self.rendezvous = 0
        self.flows = range(0)
        """The numbers of its flows; those of a later launch are higher."""
        self.first_record = self.first_aux = 0
        self.first_queues: list[int] = []
        self.caches: Any = np.zeros((0, CacheRow.width), dtype=np.int64)
        """What caches had counted before it began."""
        self.queue_ends: dict[int, tuple[int, int, int]] = {}
        """Channel, receiver and member of the queues that it uses."""
        self.own_queues: list[int] = []
        self.ends: dict[int, Any] = {}
        """By instruction, the ends of the copies of all who come to it."""
        self.sources = [c.source.compile() for c in self.plan.channels]
        self.senders = [c.source.compile() for c in resources.plan.channels]
        """Who feeds a queue on the machine: another unit, also where one unit stands for all."""

    def which(self, actor: int) -> tuple[int, int]:
        """Level (counted in the plan) and number of an instance."""
        level = bisect_right(self.offsets, actor - self.first) - 1
        return level, actor - self.first - self.offsets[level]

    def chooser(self, actor: int) -> Any:
        """An instance as data execution names it: its number, with its level where that is not the first."""
        level, number = self.which(actor)
        return number if not level else (self.plan.all_levels[level].name, number)

    def name(self, level: int, number: int, place: int) -> str:
        """Where an instance stands, and which one it is where that is not enough."""
        if not self.plan.levels:
            return self.resources.names[number]
        there = self.views[level].names[place] if place != NONE else ""
        own = f"{self.plan.all_levels[level].name}{number}" if level or self._crowded else ""
        return "/".join(part for part in (there, own) if part)

    @cached_property
    def _crowded(self) -> bool:
        """Whether two units of the first level stand at one place."""
        index = np.arange(self.plan.units)
        return np.unique(self.plan.place.evaluate({"unit": index})).size < self.plan.units

    def names(self, places: Any) -> list[str]:
        """What all instances are called."""
        if not self.plan.levels:
            return self.resources.names
        ends = zip(self.offsets, self.offsets[1:], strict=False)
        return [
            self.name(level, number, place)
            for level, (first, last) in enumerate(ends)
            for number, place in enumerate(places[first:last].tolist())
        ]


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
    ) -> None:
        """``record``: how many commands, with ``operands`` or without what they touch."""
        self.rows = Rows()
        self.tables: dict[tuple[int, int], CommandTable] = {}
        self.launches: list[LaunchRows] = []
        self.instances: dict[int, Instances] = {}
        self.idle: dict[int, list[LaunchRows]] = {}
        """By table, launches that have ended: their rows are used again."""
        self.holders: dict[str, dict[int, list[int]]] = {}
        """By level and hardware unit, the instances of the last launch there."""
        self._flows = self._serial = 0
        self._nothing = NONE
        """A stream that does nothing, if one was needed."""
        self._long = False
        """Whether a plan has so many commands that the compiled engine is worth loading at once."""
        self.tensors: dict[tuple[Any, ...], int] = {}
        """Numbers in caches of what outlives launches."""
        self._tensors = 1 << 20
        self.lasting_queues: dict[tuple[Any, ...], int] = {}
        """Queues that outlive launches, by level, hardware unit, channel and direction."""
        self.lasting_flags: dict[tuple[str, str], int] = {}
        """The first counters of flags that do, by level and name."""
        self.labels: list[tuple[Any, ...]] = []
        """Of every queue: channel, member, and the instances that receive and send; or their names."""
        self.engine = engine
        self._ran = self._expected = 0
        """Instructions that launches under way have run, and about how many they have in all."""
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
        arena.run_ahead = RUN_AHEAD

    def record_all(self) -> None:
        """Record what every instance does, also where that was not asked for: what a receive-from-any took is
        found there."""
        if not self.most_records:
            self.most_records = EVERYTHING
            self.arena.recording, self.arena.record_limit = 1, self.arena.size("records") - 1

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
    ) -> LaunchRows:
        """Submit a plan. Its instances are ready at their start; with ``at`` (when it was submitted, in the
        time of the machine) and ``begin`` (when it reaches the units) after those before them on the same
        units of the hardware."""
        key = id(plan), id(resources)
        table = self.tables.get(key)
        if table is None:
            if self.tables:
                table = CommandTable(plan, self.rows)
            else:
                table = copy(tabulated(plan))
                self.rows = table.rows.copy()
            self.tables[key] = table
            self._tabulate()
            if resources.faults.straggler:
                code = self.arena.rows("code")
                code[code[:, Instruction.kind] == WORK, Work.straggles] = 1
        idle = self.idle.get(id(table))
        launched = idle.pop() if idle else self._allocate(table, resources)
        launched.scalars = scalars
        self._expected += command_count(plan, 1)
        begin = resources.start_ps(0) if begin is None else begin
        self._restart(launched, begin)
        arena = self.arena
        launched.first_record = arena.record_base + arena.recorded
        launched.first_aux = arena.words_base + arena.recorded_words
        if at is None and not plan.levels:
            self._ready(launched)
            return launched
        if at is not None:
            self._queue_up(launched, at)
        starts = [view.start_ps(0) for view in launched.views]
        self.at(begin + min(starts) - starts[0], st.BEGINS, launched.number)
        return launched

    def _allocate(self, table: CommandTable, resources: Resources) -> LaunchRows:
        """Rows for a launch that no other uses."""
        launched = LaunchRows(table, resources, self.arena.used["launches"], self.arena.used["places"])
        self.launches.append(launched)
        for view in launched.views:
            self.paths.use(view, launched.offsets[-1])
        self._long |= command_count(table.plan) >= WARM_UP
        self._declare(launched)
        self._levels(launched)
        self.instances[launched.number] = Instances(self, launched)
        find_shared(self, launched)
        self.arena.jitter |= int(resources.faults.jitter is not None)
        return launched

    def _ready(self, launched: LaunchRows) -> None:
        """All instances may go on at once, unit 0 first."""
        arena = self.arena
        rows = int(self.table("launches")[launched.number, LaunchRow.first_unit]) + np.flatnonzero(
            launched.present
        )
        ready = arena.ready_count
        arena.rows("ready")[ready : ready + len(rows)] = rows[::-1]
        arena.ready_count = ready + len(rows)
        arena.rows("units")[rows, UnitRow.state] = st.READY

    def _queue_up(self, launched: LaunchRows, at: int) -> None:
        """Every instance or slot without a parent waits for those before it on its unit of the hardware."""
        arena, instances = self.arena, self.instances[launched.number]
        unit, before = arena.rows("units"), list[tuple[int, int]]()
        taken: list[tuple[dict[int, list[int]], int, list[int]]] = []
        own = self.table("launches")[launched.number, [LaunchRow.first_unit, LaunchRow.units]].tolist()
        for view, rows in instances.roots():
            mine: dict[int, list[int]] = {}
            for g in rows.tolist():
                if unit[g, UnitRow.state] == st.PENDING or unit[g, UnitRow.pool] != NONE:
                    place = int(unit[g, UnitRow.place])
                    mine.setdefault(place if launched.plan.levels else view.places[place], []).append(g)
            there = self.holders.setdefault(view.level.name, {})
            for place, those in mine.items():
                held = [
                    h
                    for h in self._holding(view, place)
                    if not own[0] <= h < own[0] + own[1]
                    if unit[h, UnitRow.parts] > 0 or unit[h, UnitRow.over_at] > at or self._still_used(h)
                ]
                before += [(g, h) for h in held for g in those]
                # Nobody may ever take a slot of this launch: who comes next also waits for those before.
                slots = unit[those[0], UnitRow.pool] != NONE
                taken.append((there, place, those + [h for h in there.get(place, ()) if slots and h in held]))
        for there, place, those in taken:
            there[place] = those
        unit = arena.rows("units")
        for g, h in before:
            unit[h, UnitRow.followers] = plain.engine().new_node(arena.memory, unit[h, UnitRow.followers], g)
            unit[g, UnitRow.predecessors] += 1
        instances.take_away({g for g, _ in before if unit[g, UnitRow.pool] != NONE})

    def _holding(self, resources: Resources, place: int) -> list[int]:
        """The instances that hold a unit of the hardware, or one that is in it or around it."""
        found: list[int] = []
        for name, there in self.holders.items():
            level = resources.hda.level(name)
            mine, other = resources.level.total, level.total
            if other <= mine:
                found += there.get(place * other // mine, ())
            else:
                per = other // mine
                found += [h for p in range(place * per, (place + 1) * per) for h in there.get(p, ())]
        return found

    def _still_used(self, seat: int) -> bool:
        """Whether instances may still take a slot: some wait for one, or their launch has not begun."""
        pool = int(self.arena.rows("units")[seat, UnitRow.pool])
        if pool == NONE:
            return False
        first, last = self.arena.rows("pools")[pool, [Pool.first_waiting, Pool.last_waiting]].tolist()
        return first != NONE or last == NONE

    def at(self, time: int, phase: int, what: int) -> None:
        """An event from outside: a launch that comes."""
        self.arena.sequence += 1
        plain.engine().push(self.arena.memory, time, phase, what, self.arena.sequence, what)

    def withdraw(self, launched: LaunchRows) -> bool:
        """A launch shall do nothing: each instance ends as soon as those before it are over. False where one
        has begun."""
        arena, instances = self.arena, self.instances[launched.number]
        if instances.begun:
            return False
        if self._nothing == NONE:
            rows, self._nothing = self.rows, len(self.rows.streams)
            rows.streams.append((len(rows.code), rows.raw([0]), 1))
            rows.instruction(None, End, ended=0)
            self._tabulate()
        instances.do_nothing(self._nothing)
        heap = arena.rows("events")[: arena.event_count]
        coming = heap[:, Event.key] // st.PHASE == st.BEGINS
        coming &= heap[:, Event.subject] == launched.number
        heap[coming, Event.subject] = NONE
        if coming.any():
            plain.engine().begin_launch(arena.memory, launched.number, self.clock_ps)
        return True

    def continue_from(self, other: Simulation) -> None:
        """Time and lasting queues as another simulation left them, in which nothing is under way."""
        mine, theirs = self.arena, other.arena
        mine.clock, mine.last, mine.sequence = theirs.clock, theirs.last, theirs.sequence
        mine.record_base = theirs.record_base + theirs.recorded
        mine.words_base = theirs.words_base + theirs.recorded_words
        self._flows, self._serial = other._flows, other._serial
        self.tensors, self._tensors = other.tensors, other._tensors
        self.paths.remember(other.paths)
        if other.lasting_flags:
            counters = other.table("counters")
            self.arena.extend("counters", len(counters))
            self.arena.rows("counters")[: len(counters)] = counters
            self.lasting_flags = dict(other.lasting_flags)
        for key, number in other.lasting_queues.items():
            queue = other.table("queues")[number].copy()
            slots, ring = int(queue[Queue.slots]), int(queue[Queue.ring])
            queue[Queue.ring] = at = self.arena.extend("slots", slots)
            self.arena.rows("slots")[at : at + slots] = other.table("slots")[ring : ring + slots]
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

    def _tabulate(self) -> None:
        """The tables of all plans as arrays."""
        rows, arena = self.rows, self.arena
        for name in TABLES:
            used, count = arena.used[name], len(getattr(rows, name))
            made = rows.made.pop(name, None)
            if used < count:
                arena.extend(name, count - used)
                arena.rows(name)[used:count] = getattr(rows, name)[used:] if made is None else made
        at = arena.extend("storages", rows.memories - arena.used["storages"])
        if rows.memory_of:
            described, times = zip(*rows.memory_of, strict=True)
            arena.rows("storages")[at : rows.memories] = np.repeat(np.array(described), times, axis=0)
            rows.memory_of = []
        arena.set_dimensions(rows.dimensions)

    def _declare(self, launched: LaunchRows) -> None:
        """The channels, flags and rendezvous of a launch."""
        plan, table, arena = launched.plan, launched.table, self.arena
        launched.channels = arena.extend("channels", len(plan.channels))
        launched.levels = arena.used["levels"]
        for i, channel in enumerate(plan.channels):
            units = plan.instances(channel.level)
            count = units * channel.members
            if count > 1 << 28:
                raise pm.PlanError(
                    f"channel '{channel.name}' has {count} queues: too many to be simulated",
                    advice="use fewer members or units",
                )
            first = arena.extend("launch_queues", count, NONE)
            launched.first_queues.append(first)
            row = (
                first,
                channel.members,
                channel.slots,
                table.slot_base[i],
                channel.slot_bytes,
                units,
                0,
                launched.levels + table.levels[plan.level(channel.level).name],
            )
            arena.rows("channels")[launched.channels + i] = row
        launched.flags = arena.extend("flags", len(plan.flags))
        for i, flag in enumerate(plan.flags):
            units = plan.instances(flag.level)
            key = (launched.resources.level.name, flag.name)
            first = self.lasting_flags.get(key, NONE) if flag.installed else NONE
            if first == NONE:
                first = arena.extend("counters", units * flag.members)
                arena.rows("counters")[first : first + units * flag.members] = (0, NONE, NONE)
            if flag.installed:
                self.lasting_flags[key] = first
            level = launched.levels + table.levels[plan.level(flag.level).name]
            arena.rows("flags")[launched.flags + i] = (first, flag.members, units, level)
        launched.rendezvous = arena.extend("rendezvous", len(table.members))
        for i, members in enumerate(table.members):
            arena.rows("rendezvous")[launched.rendezvous + i] = (0, len(members), 0, NONE, NONE)
        arena.append("launches", (
            table.first_slot, table.alias_base, launched.channels, launched.flags, launched.rendezvous,
            launched.levels, table.storages, arena.used["units"], 0, 0, 0, 0, 0, 0, 0,
        ))  # fmt: skip

    def _levels(self, launched: LaunchRows) -> None:
        """The levels of a launch, and what is private to their units."""
        plan, table, arena, hda = launched.plan, launched.table, self.arena, launched.resources.hda
        for i, (level, view) in enumerate(zip(plan.all_levels, launched.views, strict=True)):
            memory = table.memory_base + i * table.storages
            parent = NONE if level.parent is None else launched.levels + table.levels[level.parent]
            streams, one, places = table.level_lists[i]
            fixed = level.slots is None and (parent == NONE or arena.rows("levels")[parent, LevelRow.fixed])
            arena.append("levels", (
                parent, level.count, places, units_below(hda, level, plan) if plan.levels else 0,
                view.level.total if plan.levels else 0, plan.instances(level.name), streams, one, memory,
                launched.first + launched.offsets[i], 0, 0, table.lanes(view.message_queues), int(fixed), 0,
                view.to_begin_ps,
            ))  # fmt: skip
            if table.memories:
                private = np.array([view.private(name) for name in table.memories])
                rows = arena.rows("storages")[memory : memory + table.storages]
                rows[:, Storage.private] = private[rows[:, Storage.memory]]
                self._bricks(launched, view, memory)

    def _bricks(self, launched: LaunchRows, view: Resources, memory: int) -> None:
        """The blocks of tiles in front of whose memory a level sees caches."""
        table, found = launched.table, list[tuple[int, int, int]]()
        for name in table.memories:
            for tile, shape in view.bricks(name).items():
                number = table.tiles[tile]
                described = launched.plan.tiles[number]
                grid = [-(-extent // size) for extent, size in zip(described.shape, shape, strict=True)]
                size = prod(shape) * itemsize(described.dtype)
                base = table.base[number]
                kept = self._kept(launched, described, shape)
                shift = 0 if kept is None else kept - base
                at = self.rows.raw([len(shape), size, shift, *shape, *grid])
                found.append((memory + base, described.versions, at))
        if found:
            self._tabulate()
        for first, versions, at in found:
            self.arena.rows("storages")[first : first + versions, Storage.blocks] = at

    def _kept(self, launched: LaunchRows, tile: pm.Tile, shape: tuple[int, ...]) -> int | None:
        """The number of a tensor whose blocks outlive its launch in caches: whoever means the same memory and
        cuts it into blocks alike finds them again."""
        if tile.role == "local":
            return None
        name = tile.name if tile.offset is None else ""
        where = launched.plan.scale, place_numbers(launched.plan)
        key = (name, where, replace(tile, name="", role="", versions=1), shape)
        return self.tensors.setdefault((*key, tile.versions), self._next_tensor(tile.versions))

    def forget_tensor(self, name: str) -> None:
        """What comes under this name is another tensor; its blocks are not in caches."""
        self.tensors = {key: number for key, number in self.tensors.items() if key[0] != name}

    def _next_tensor(self, versions: int) -> int:
        """A number above those of all storages of a launch."""
        first, self._tensors = self._tensors, self._tensors + versions
        return first

    def _restart(self, launched: LaunchRows, begin: int) -> None:
        """All rows of a launch as they are before it begins."""
        plan, arena = launched.plan, self.arena
        counts = [plan.instances(c.level) * c.members for c in plan.channels]
        flows = self._flows
        self._flows += sum(counts) + 2 * launched.offsets[-1]
        launched.flows = range(flows, self._flows)
        self.instances[launched.number].restart(begin, flows + sum(counts))
        for i, (channel, count) in enumerate(zip(plan.channels, counts, strict=True)):
            arena.rows("channels")[launched.channels + i, ChannelRow.first_flow] = flows
            flows += count
            place = launched.first_queues[i]
            rows = arena.rows("launch_queues")[place : place + count]
            if channel.installed:
                rows[:] = NONE
            rows[:, LaunchQueue.sent] = 0
        launched.queue_ends = {q: launched.queue_ends[q] for q in launched.own_queues}
        queue, ring = arena.rows("queues"), arena.rows("slots")
        for q in launched.own_queues:
            queue[q, [Queue.sent, Queue.taken]] = 0
            queue[q, [Queue.data_waiter, Queue.credit_waiter]] = NONE
            ring[queue[q, Queue.ring] : queue[q, Queue.ring] + queue[q, Queue.slots]] = st.UNKNOWN
        for i, flag in enumerate(plan.flags):
            start = int(arena.rows("flags")[launched.flags + i, FlagRow.first_counter])
            if not flag.installed:
                counters = plan.instances(flag.level) * flag.members
                arena.rows("counters")[start : start + counters] = (0, NONE, NONE)
        count = sum(int(np.count_nonzero(streams != NONE)) for streams in launched.table.stream_of)
        row = arena.rows("launches")[launched.number]
        self._serial += 1
        launched.caches = self.table("caches").copy()
        row[[LaunchRow.unfinished, LaunchRow.last, LaunchRow.began, LaunchRow.serial]] = (
            count,
            begin,
            begin,
            self._serial,
        )
        if not count:
            self.at(begin, st.HOSTS, launched.number)

    def launch_of(self, g: int) -> LaunchRows:
        return self.launches[int(self.arena.rows("units")[g, UnitRow.launch])]

    def places(self, launched: LaunchRows) -> Any:
        """The hardware units of all instances of a launch (NONE: it has not begun)."""
        return self.arena.rows("places")[launched.first : launched.first + launched.offsets[-1]]

    def label(self, queue: int) -> tuple[str, str, str]:
        """What a queue is called, and who receives and sends."""
        first, *rest = self.labels[queue]
        if isinstance(first, str):
            return (first, *rest)
        return (first.label(rest[0]), self.name(rest[1]), self.name(rest[2]))

    def name(self, actor: int) -> str:
        """Where an instance stands."""
        launched = next(k for k in reversed(self.launches) if k.first <= actor)
        return launched.name(*launched.which(actor), int(self.arena.rows("places")[actor]))

    def view(self, g: int) -> tuple[LaunchRows, int, Resources]:
        """The launch of an instance, its level there, and the machine as that sees it."""
        launched = self.launch_of(g)
        level = int(self.arena.rows("units")[g, UnitRow.level]) - launched.levels
        return launched, level, launched.views[level]

    def messages(self, launched: LaunchRows) -> dict[str, dict[int, int]]:
        """Per channel, how many messages were sent to each queue (receiver * members + member)."""
        found: dict[str, dict[int, int]] = {c.name: {} for c in launched.plan.channels}
        queues, places = self.table("queues"), self.table("launch_queues")
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
        """Go on until a launch has ended (it is returned), nothing can go on, or the time is over.

        The engine runs in slices: handlers of signals are called between them, so that what is under way can
        be continued after one that raises.
        """
        with held_signals() as signals:
            plain.FUNCTIONS.answering[self._owner] = lambda: self._answer(deadline, signals)
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
                self._expected -= command_count(launched.plan, 1)
                self._ran, self._spent = 0, 0.0
                return launched
            if reason == st.STOPPED:
                self._fail()
            signals.deliver()
            if deadline is not None and now > deadline:
                return None
            if now - began > LONG_SECONDS:
                tell(f"simulating '{self.launches[-1].plan.name}'", self._ran, max(self._ran, self._expected))
            if warming and Simulation._steps >= WARM_UP:
                engine, slice_ = compiled(), SLICE["compiled"]
            elif ran == slice_:
                times = SLICE_SECONDS / max(now - before, SLICE_SECONDS / 4)
                slice_ = int(min(MOST_SLICE, max(LEAST_SLICE, slice_ * times)))

    def _answer(self, deadline: float | None, signals: HeldSignals) -> int:
        """Answer what the engine asks. An error is kept: it cannot pass through machine code, and is raised
        when the engine has stopped. The slice ends early where a signal has come or the time is over."""
        arena = self.arena
        if arena.stopped:
            return NONE
        try:
            question, *asked = arena.rows("asked")[0, : Question.e + 1].tolist()
            found = MachineQueries(self).answer(question, asked)
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

    def how_far(self) -> str:
        """Say how much of the launches under way is done, and how long the rest may take."""
        done = self._ran / max(1, self._ran, self._expected)
        rest = self._spent * (1 / done - 1) if done else 0.0
        more = f"; the rest may take {format_time(rest * 1e12)}" if rest else ""
        return f"about {done:.2%} is done, {format_time(self.last_ps)} of simulated time{more}"

    @property
    def clock_ps(self) -> int:
        """The time of the last event; whatever comes from outside comes later."""
        return self.arena.clock

    def last_of(self, launched: LaunchRows) -> int:
        """When the last thing of a launch ends."""
        return int(self.table("launches")[launched.number, LaunchRow.last])

    # what came out

    @property
    def last_ps(self) -> int:
        return self.arena.last

    def table(self, name: str) -> Any:
        """The rows of a table that are in use."""
        if name == "answers":
            return self.arena.rows(name)
        used = self.arena.recorded if name == "records" else self.arena.used[name]
        return self.arena.rows(name)[:used]
