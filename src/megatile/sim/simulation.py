"""Plans on one machine: their tables, the engine's state, and the answers to what the engine asks."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.plan import model as pm
from megatile.sim import engine as plain
from megatile.sim import state as st
from megatile.sim.compiled import compiled, is_compiled
from megatile.sim.data import Scalars, assumed
from megatile.sim.state import NONE, Arena
from megatile.sim.table import DMA, ENGINES, PlanTable, Rows, StreamTable
from megatile.timing.fabric import Path
from megatile.timing.resources import SIGNAL_BYTES, Resources

WARM_UP = 4000
"""Instructions that are run uncompiled before the compiled engine is loaded."""
MOST_RECORDS = 1 << 20
"""Commands that are recorded unless more are asked for."""
BETWEEN_LOOKS = 1 << 15
"""Instructions between looks at the clock on the wall."""
NEVER = 1 << 62
MOST_QUEUES = 1 << 14
"""Up to so many queues it is found out beforehand which links only one of them uses."""
GONE = -2
"""The tag of an answer that holds no longer."""
TABLES = ("code", "expr", "bytecode", "constants", "lists", "region", "tile", "alias")
"""Tables that grow with every plan."""
POOLS = {
    "command": (st.WAITERS, st.FREE_COMMAND),
    "node": (0, st.FREE_NODE),
    "log": (st.LOG_NEXT, st.FREE_LOG),
}
"""Tables with a list of free rows: the column that links them, and where the list begins."""


class QueueMisuse(Exception):
    """Something about queues, flags or groups that no plan may do."""


def commands(plan: pm.Plan) -> int:
    """About how many commands a plan issues, as far as its loops say."""

    def count(body: Any) -> int:
        found = 0
        for statement in body:
            if isinstance(statement, pm.Loop):
                bounds = [constant(e) for e in (statement.start, statement.stop, statement.step)]
                times = len(range(*bounds)) if None not in bounds else 8  # type: ignore[arg-type]
                found += times * count(statement.body)
            elif isinstance(statement, pm.If):
                found += max(count(statement.body), count(statement.orelse))
            else:
                found += 1
        return found

    return sum(stream.unit_count() * count(stream.body) for stream in plan.streams)


def as_bits(rate: float) -> int:
    """A float as the integer that stands for it in the arena."""
    return int(np.float64(rate).view(np.int64))


def members_of(stream: StreamTable) -> Any:
    """The units of a stream."""
    return np.fromiter(stream.stream.unit_numbers(), dtype=np.int64)


class Launched:
    """One plan that was submitted: its instances, and how the machine answers for it."""

    def __init__(self, table: PlanTable, resources: Resources, number: int, first: int) -> None:
        self.table = table
        self.plan = table.plan
        self.resources = resources
        self.scalars: Scalars = assumed(None)
        self.number = number
        self.first = first
        """Its row among the launches, and its first instance."""
        self.present = np.sort(np.concatenate([np.arange(0), *(members_of(s) for s in table.streams)]))
        """Units that have a stream; others are in other launches."""
        self.channels = 0
        self.flags = 0
        self.meetings = 0
        self.flows = range(0)
        """The numbers of its flows; those of a later launch are higher."""
        self.first_record = self.first_aux = 0
        self.first_queues: list[int] = []
        self.begins: dict[int, tuple[int, int]] = {}
        self.frames: list[tuple[Any, int, Any]] = []
        self.queue_ends: dict[int, tuple[int, int, int]] = {}
        """Channel, receiver and member of the queues that it uses."""
        self.own_queues: list[int] = []
        self.sources = [c.source.compile() for c in self.plan.channels]
        self.senders = [c.source.compile() for c in resources.plan.channels]
        """Who feeds a queue on the machine: another unit, also where one unit stands for all."""


class Simulation:
    """The state of one machine; see the module's text."""

    def __init__(
        self,
        *,
        record: int = MOST_RECORDS,
        engine: str | None = None,
        everything_shared: bool = False,
        contended: bool = True,
    ) -> None:
        self.contended = contended
        self.rows = Rows()
        self.tables: dict[tuple[int, int], PlanTable] = {}
        self.launches: list[Launched] = []
        self.idle: dict[int, list[Launched]] = {}
        """By table, launches that have ended: their rows are used again."""
        self.holders: dict[str, dict[int, list[int]]] = {}
        """By level and hardware unit, the instances of the last launch there."""
        self._flows = 0
        self.everything_shared = everything_shared
        self.shared: set[Any] = set()
        """Keys of the resources that more than one flow uses."""
        self.servers: dict[Any, int] = {}
        self.server_keys: list[Any] = []
        self.paths: list[Path] = []
        self._path_numbers: dict[int, int] = {}
        self.installed: dict[tuple[Any, ...], int] = {}
        """Queues that outlive launches, by level, hardware unit, channel and direction."""
        self.labels: list[tuple[str, str, str]] = []
        """Of every queue: its label, and the names of the units that receive and send."""
        self.engine = engine
        self.most_records = record
        self.complete_record = True
        self._steps = 0
        self._memoised = 0
        self.arena = arena = Arena()
        for name, count in (
            ("heap", 256),
            ("todo", 256),
            ("record", 1024 if record else 16),
            ("aux", 16384),
            ("ask", 1),
        ):
            arena.reserve(name, count)
        arena.reserve("memo", 256)
        arena.rows("memo")[:] = NONE
        arena.memory[[st.FREE_COMMAND, st.FREE_NODE, st.FREE_LOG]] = NONE
        arena.memory[st.RECORDING] = int(record > 0)
        arena.memory[st.UNTIL] = NEVER
        for name in POOLS:
            self._extend_pool(name, 256)
        self._answers: dict[int, Callable[..., None]] = {
            st.ASK_QUEUE: self._queue,
            st.ASK_PATH: self._path,
            st.ASK_BUSY: self._busy,
            st.ASK_MEETING: self._meeting,
            st.ASK_MESSAGE: self._message,
            st.ASK_VALUE: self._value,
            st.ASK_DELAY: self._delay,
        }

    # tables that grow

    def _extend_pool(self, name: str, count: int) -> None:
        """More rows of commands, nodes or accesses, in their list of free ones."""
        column, head = POOLS[name]
        at = self.arena.extend(name, count)
        rows = self.arena.rows(name)[at : at + count]
        rows[:, column] = np.arange(at + 1, at + count + 1)
        rows[-1, column] = self.arena.memory[head]
        self.arena.memory[head] = at
        self.arena.set_size(name, at + count)

    def _grow(self) -> None:
        """Double what is nearly full."""
        arena = self.arena
        live, nodes, logs, events, records, aux = (
            int(arena.memory[i])
            for i in (st.LIVE_COMMANDS, st.LIVE_NODES, st.LIVE_LOGS, st.EVENTS, st.RECORDED, st.AUX)
        )
        for name, needed in (("command", 2 * live), ("node", nodes + logs), ("log", logs)):
            if needed + 64 > arena.size(name):
                self._extend_pool(name, arena.size(name))
        for name, needed in (("heap", events + live), ("todo", live), ("aux", aux + 4096)):
            if needed + 64 > arena.size(name):
                arena.reserve(name, 2 * arena.size(name) + 64)
        if records + 2 * live + 64 > arena.size("record"):
            if arena.memory[st.RECORDING] and arena.size("record") >= self.most_records:
                arena.memory[[st.RECORDING, st.RECORDED, st.AUX]] = 0
                self.complete_record = False
                self._forget_causes()
            arena.reserve("record", 2 * arena.size("record"))

    def _forget_causes(self) -> None:
        """Too much was recorded: what is known so far is dropped, and numbers of records mean nothing."""
        columns = {
            "unit": st.CAUSE,
            "command": [st.RECORD, st.WHY],
            "log": st.LOG_WHY,
            "tails": 2,
            "ring": [1, 3],
        }
        for name, column in columns.items():
            self.arena.rows(name)[:, column] = NONE

    # launches

    def add(
        self,
        plan: pm.Plan,
        resources: Resources,
        scalars: Scalars,
        *,
        at: int | None = None,
        begin: int | None = None,
    ) -> Launched:
        """Submit a plan. Its instances are ready at their start; with ``at`` (when it was submitted, in the
        time of the machine) and ``begin`` (when it reaches the units) after those before them on the same
        units of the hardware."""
        key = id(plan), id(resources)
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = PlanTable(plan, self.rows)
            self._tabulate()
            if resources.faults.straggler:
                code = self.arena.rows("code")
                code[code[:, st.KIND] == st.WORK, st.G] = 1
        idle = self.idle.get(id(table))
        launched = idle.pop() if idle else self._allocate(table, resources)
        launched.scalars = scalars
        self._restart(launched, resources.start_ps(0) if begin is None else begin)
        self._room(launched)
        if at is None:
            self._ready(launched)
        else:
            self._queue_up(launched, at, begin or 0)
        return launched

    def _allocate(self, table: PlanTable, resources: Resources) -> Launched:
        """Rows for a launch that no other uses."""
        launched = Launched(table, resources, self.arena.used["launch"], self.arena.used["unit"])
        self.launches.append(launched)
        self.arena.make_room(self._words(table))
        self._declare(launched)
        self.arena.extend("unit", table.plan.units)
        self._find_shared(launched)
        self._instances(launched)
        return launched

    def _room(self, launched: Launched) -> None:
        """Room for what a launch will record."""
        arena = self.arena
        launched.first_record = int(arena.memory[st.RECORD_BASE] + arena.memory[st.RECORDED])
        launched.first_aux = int(arena.memory[st.AUX_BASE] + arena.memory[st.AUX])
        if self.most_records:
            room = min(self.most_records, int(1.3 * launched.table.commands) + 64)
            arena.reserve("record", int(arena.memory[st.RECORDED]) + room)
            arena.reserve("aux", int(arena.memory[st.AUX]) + 12 * room + 8192)

    def _ready(self, launched: Launched) -> None:
        """All instances may go on at once, unit 0 first."""
        arena = self.arena
        ready, count = int(arena.memory[st.READIES]), len(launched.present)
        arena.reserve("ready", arena.used["unit"] + 64)
        arena.rows("ready")[ready : ready + count] = launched.first + launched.present[::-1]
        arena.memory[st.READIES] = ready + count
        arena.rows("unit")[launched.first + launched.present, st.STATE] = st.READY

    def _queue_up(self, launched: Launched, at: int, begin: int) -> None:
        """Every instance waits for its launch and for those before it on its unit of the hardware."""
        arena, resources = self.arena, launched.resources
        arena.reserve("ready", arena.used["unit"] + 64)
        here = self.holders.setdefault(resources.level.name, {})
        mine: dict[int, list[int]] = {}
        for number in launched.present.tolist():
            mine.setdefault(resources.places[number], []).append(launched.first + number)
        unit = arena.rows("unit")
        before = [
            (g, h)
            for place, instances in mine.items()
            for h in self._holding(resources, place)
            if not launched.first <= h < launched.first + launched.plan.units
            if unit[h, st.STATE] != st.OVER or max(unit[h, st.NOW], unit[h, st.LATEST]) > at
            for g in instances
        ]
        memory = arena.memory
        while int(memory[st.LIVE_NODES] + memory[st.LIVE_LOGS]) + len(before) + 64 > arena.size("node"):
            self._extend_pool("node", arena.size("node"))
            memory = arena.memory
        unit, node = arena.rows("unit"), arena.rows("node")
        for g, h in before:
            n = int(memory[st.FREE_NODE])
            memory[st.FREE_NODE] = node[n, 0]
            memory[st.LIVE_NODES] += 1
            node[n] = (unit[h, st.FOLLOWERS], g)
            unit[h, st.FOLLOWERS] = n
            unit[g, st.HOLDERS] += 1
        here.update(mine)
        self.at(begin, st.BEGINS, launched.number)

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

    def at(self, time: int, phase: int, what: int) -> None:
        """An event from outside: a launch that comes."""
        self.arena.reserve("heap", int(self.arena.memory[st.EVENTS]) + 64)
        memory = self.arena.memory
        memory[st.SEQUENCE] += 1
        plain.push(memory, time, phase, what, int(memory[st.SEQUENCE]), what)

    def release(self, launched: Launched) -> None:
        """A launch has ended: its rows may be used by another of the same plan, its records are dropped."""
        self.idle.setdefault(id(launched.table), []).append(launched)
        memo, flows, units = self.arena.rows("memo"), launched.flows, launched.plan.units
        value, delay = memo[:, 0] == st.ASK_VALUE, memo[:, 0] == st.ASK_DELAY
        value &= (memo[:, 2] >= launched.first) & (memo[:, 2] < launched.first + units)
        delay &= (memo[:, 1] >= flows.start) & (memo[:, 1] < flows.stop)
        memo[value | delay, 0] = GONE

    def forget_records(self, active: list[Launched]) -> None:
        """Drop the records before those of launches under way, when they are most of all."""
        memory = self.arena.memory
        for name, base, used, starts in (
            ("record", st.RECORD_BASE, st.RECORDED, [a.first_record for a in active]),
            ("aux", st.AUX_BASE, st.AUX, [a.first_aux for a in active]),
        ):
            count = int(memory[used])
            gone = min([start - int(memory[base]) for start in starts] + [count])
            if 2 * gone > count:
                rows = self.arena.rows(name)
                rows[: count - gone] = rows[gone:count].copy()
                memory[base] += gone
                memory[used] = count - gone

    def _words(self, table: PlanTable) -> int:
        """About how much memory a launch takes."""
        units = table.plan.units
        frame = max((len(s.frame) for s in table.streams), default=1)
        table.commands = commands(table.plan)
        records = min(self.most_records, int(1.3 * table.commands) + 64) if self.most_records else 0
        each = frame + 4 * (table.storages + 32) + sum(c.members for c in table.plan.channels) + 128
        return units * each + records * (st.WIDTHS["record"] + 12) + (1 << 16)

    def _tabulate(self) -> None:
        """The tables of all plans as arrays."""
        rows, arena = self.rows, self.arena
        for name in TABLES:
            values = np.asarray(getattr(rows, name)[arena.used[name] :], dtype=np.int64)
            first = arena.extend(name, len(values))
            if len(values):
                arena.rows(name)[first : first + len(values)] = values
        at = arena.used["memory_of"]
        arena.extend("memory_of", len(rows.memory_of) - at)
        arena.rows("memory_of")[at : len(rows.memory_of), 0] = rows.memory_of[at:]
        arena.set_dimensions(rows.dimensions)
        arena.reserve("access", rows.accesses + 1)
        frames = max((len(s.frame) for t in self.tables.values() for s in t.streams), default=1)
        arena.reserve("scratch", st.BINDS + 2 * frames)

    def _declare(self, launched: Launched) -> None:
        """The channels, flags and meetings of a launch."""
        plan, table, arena = launched.plan, launched.table, self.arena
        launched.channels = arena.extend("channel", len(plan.channels))
        for i, channel in enumerate(plan.channels):
            count = plan.units * channel.members
            if count > 1 << 28:
                raise pm.PlanError(
                    f"channel '{channel.name}' has {count} queues: too many to be simulated",
                    advice="use fewer members or units",
                )
            first = arena.extend("queue_of", count)
            launched.first_queues.append(first)
            row = (
                first,
                channel.members,
                channel.slots,
                table.slot_base[i],
                channel.slot_bytes,
                plan.units,
                0,
            )
            arena.rows("channel")[launched.channels + i] = row
        launched.flags = arena.extend("flag", len(plan.flags))
        for i, flag in enumerate(plan.flags):
            first = arena.extend("counter", plan.units * flag.members)
            arena.rows("flag")[launched.flags + i] = (first, flag.members, plan.units)
        launched.meetings = arena.extend("meeting", len(table.members))
        for i, members in enumerate(table.members):
            arena.rows("meeting")[launched.meetings + i] = (0, len(members), 0, NONE, NONE)
        at = arena.extend("launch", 1)
        arena.rows("launch")[at] = (
            table.memory_base, table.first_slot, table.alias_base, launched.channels, launched.flags,
            launched.meetings, table.storages, launched.first, plan.units, 0, 0, 0,
        )  # fmt: skip
        if table.memories:
            private = np.array([int(not launched.resources.memory(name)[2]) for name in table.memories])
            memory = arena.rows("memory_of")[table.memory_base : table.memory_base + table.storages]
            memory[:, 1] = private[memory[:, 0]]

    def _instances(self, launched: Launched) -> None:
        plan, table, arena, resources = launched.plan, launched.table, self.arena, launched.resources
        units = plan.units
        slots = table.storages - table.first_slot
        engines = DMA + resources.dma.channels
        launched.begins = begins = {
            st.STORE: (arena.extend("heads", table.storages * units, NONE), table.storages),
            st.HOLD: (arena.extend("held", slots * units), slots),
            st.ENGINES: (arena.extend("tails", engines * units), engines),
        }
        for stream in table.streams:
            members = members_of(stream)
            launched.frames.append((stream, arena.extend("frame", len(stream.frame) * len(members)), members))
        self._engines(launched, begins[st.ENGINES][0], engines)
        arena.memory[st.JITTER] |= int(resources.faults.jitter is not None)

    def _restart(self, launched: Launched, begin: int) -> None:
        """All rows of a launch as they are before it begins."""
        plan, arena, first = launched.plan, self.arena, launched.first
        units = plan.units
        numbers = np.arange(units)
        u = arena.rows("unit")[first : first + units]
        u[:] = 0
        u[:, [st.CAUSE, st.SHARED, st.WAITS, st.SINCE, st.NEXT, st.FOLLOWERS]] = NONE
        u[:, st.NUMBER] = numbers
        u[:, st.LAUNCH] = launched.number
        u[:, st.NOW] = begin
        u[:, st.STATE] = st.OVER
        u[launched.present, st.STATE] = st.QUEUED
        u[:, st.HOLDERS] = 1
        for column, (start, width) in launched.begins.items():
            u[:, column] = start + width * numbers
        for stream, start, members in launched.frames:
            size = len(stream.frame)
            block = arena.rows("frame")[start : start + size * len(members)].reshape(-1, size)
            block[:] = stream.frame
            block[:, 0] = members
            u[members, st.FRAME] = start + size * np.arange(len(members))
            u[members, st.PC] = stream.first
        start, engines = launched.begins[st.ENGINES]
        arena.rows("tails")[start : start + engines * units, :3] = (0, NONE, NONE)
        start, slots = launched.begins[st.HOLD]
        arena.rows("held")[start : start + slots * units] = 0
        queues = sum(plan.units * c.members for c in plan.channels)
        self._flows, flows = self._flows + queues + 2 * units, self._flows
        launched.flows = range(flows, self._flows)
        u[:, st.FLOW] = flows + queues + numbers
        for i, channel in enumerate(plan.channels):
            arena.rows("channel")[launched.channels + i, st.CHANNEL_FIRST] = flows
            flows += plan.units * channel.members
            place = launched.first_queues[i]
            rows = arena.rows("queue_of")[place : place + plan.units * channel.members]
            rows[:, st.QUEUE_SENT] = 0
            if channel.installed:
                rows[:] = 0
        launched.queue_ends = {q: launched.queue_ends[q] for q in launched.own_queues}
        queue, ring = arena.rows("queue"), arena.rows("ring")
        for q in launched.own_queues:
            queue[q, [st.SENT, st.TAKEN]] = 0
            queue[q, [st.DATA_WAITER, st.CREDIT_WAITER]] = NONE
            ring[queue[q, st.RING] : queue[q, st.RING] + queue[q, st.SLOTS]] = st.UNKNOWN
        counters = sum(units * flag.members for flag in plan.flags)
        if counters:
            start = int(arena.rows("flag")[launched.flags, st.FIRST_COUNTER])
            arena.rows("counter")[start : start + counters] = (0, NONE, 0, NONE)
        row = arena.rows("launch")[launched.number]
        row[[st.UNFINISHED, st.LAUNCH_LAST, st.BEGAN]] = (len(launched.present), begin, begin)
        if not len(launched.present):
            self.at(begin, st.HOSTS, launched.number)

    def _engines(self, launched: Launched, first: int, engines: int) -> None:
        """The queues of every instance's engines; several instances may share an engine."""
        units, resources = launched.plan.units, launched.resources
        self.arena.rows("tails")[first : first + engines * units, 3] = NONE
        for engine, name in enumerate((*ENGINES[1:], "dma"), 1):
            if not units or not self.contended or resources.engine_resource(name, 0) is None:
                continue
            keys = [resources.engine_resource(name, unit) for unit in range(units)]
            if len(set(keys)) < len(keys) or self.everything_shared:
                servers = [self._server(key, 1) for key in keys]
                rows = self.arena.rows("tails")[first : first + engines * units]
                for e in range(engine, engines if name == "dma" else engine + 1):
                    rows[e::engines, 3] = servers

    # what is shared

    def _find_shared(self, launched: Launched) -> None:
        """Links that only one queue uses need no place in the time queue. More may be taken for shared than
        are: that costs time, not truth."""
        if self.everything_shared or not self.contended:
            return
        plan, resources = launched.plan, launched.resources
        used = {
            s.channel for stream in plan.streams for s in pm.statements(stream.body) if isinstance(s, pm.Send)
        }
        channels = [c for c in plan.channels if c.name in used]
        remote = any(r[st.OWNER] != NONE for r in self.rows.region)
        if remote or sum(c.members for c in channels) * plan.units > MOST_QUEUES:
            self.everything_shared = True
            return
        users: dict[int, Any] = {}
        units = np.arange(plan.units, dtype=np.int64)
        keys = resources.fabric.keys
        for channel in channels:
            for member in range(channel.members):
                sources = channel.source.evaluate({"unit": units, "member": member})
                sources = np.broadcast_to(sources, units.shape).tolist()
                for receiver, sender in enumerate(sources):
                    if not 0 <= sender < plan.units or resources.places[sender] == resources.places[receiver]:
                        continue
                    ends = resources.hardware(sender), resources.hardware(receiver)
                    for stage in resources.fabric.stages(*ends):
                        if stage.resource is not None:
                            flow = (channel.name, receiver, member)
                            if users.setdefault(stage.resource, flow) != flow:
                                self.shared.add(keys[stage.resource])

    def _server(self, key: Any, width: int) -> int:
        number = self.servers.get(key)
        if number is None:
            lanes = self.arena.extend("lane", width)
            number = self.servers[key] = self.arena.append("server", (lanes, width))
            self.server_keys.append(key)
        return number

    def _is_shared(self, key: Any) -> bool:
        if not self.contended:
            return False
        is_memory = isinstance(key, tuple) and key[0] == "memory"
        return self.everything_shared or is_memory or key in self.shared

    def _number_path(self, path: Path, resources: Resources) -> int:
        """The row of a path; paths of the machine are kept by identity."""
        known = self._path_numbers.get(id(path))
        if known is not None:
            return known
        fabric, arena, contended = resources.fabric, self.arena, False
        first = arena.used["stage"]
        for stage in path.stages:
            server, shared = NONE, False
            if stage.resource is not None:
                key = fabric.keys[stage.resource]
                server, shared = self._server(key, fabric.widths[stage.resource]), self._is_shared(key)
                contended |= shared
            arena.append("stage", (server, stage.latency_ps, int(shared), -1, 0, as_bits(stage.bandwidth)))
        granule = (path.granule or 0) if path.first_resource is not None else 0
        number = arena.append("path", (
            first, len(path.stages), path.startup_ps, path.latency_ps, path.extra_ps, path.before_ps,
            NONE if path.first_resource is None else path.first_resource, granule, int(contended), -1, 0,
            as_bits(path.bandwidth), as_bits(path.dma_bandwidth),
        ))  # fmt: skip
        self.paths.append(path)
        self._path_numbers[id(path)] = number
        return number

    # answers

    def _remember(self, tag: int, a: int, b: int, c: int, d: int, value: int) -> None:
        memo = self.arena.rows("memo")
        self._memoised += 1
        if 2 * self._memoised > len(memo):
            rows = memo[(memo[:, 0] != NONE) & (memo[:, 0] != GONE)].tolist()
            self._memoised = len(rows) + 1
            self.arena.reserve("memo", 4 * len(memo))
            memo = self.arena.rows("memo")
            memo[:] = NONE
            for row in rows:
                self._insert(memo, row)
        self._insert(memo, [tag, a, b, c, d, value])

    @staticmethod
    def _insert(memo: Any, row: list[int]) -> None:
        mask = len(memo) - 1
        h = row[1] * 31 + (row[2] % 1000003) * 7919 + row[3] * 127 + row[4] * 8191 + row[0]
        h = (h ^ (h >> 17)) & mask
        while memo[h, 0] != NONE:
            h = (h + 1) & mask
        memo[h] = row

    def launch_of(self, g: int) -> Launched:
        return self.launches[int(self.arena.rows("unit")[g, st.LAUNCH])]

    def name(self, g: int) -> str:
        """Where an instance stands."""
        launched = self.launch_of(g)
        return launched.resources.names[g - launched.first]

    def messages(self, launched: Launched) -> dict[str, dict[int, int]]:
        """Per channel, how many messages were sent to each queue (receiver * members + member)."""
        found: dict[str, dict[int, int]] = {c.name: {} for c in launched.plan.channels}
        queues, places = self.table("queue"), self.table("queue_of")
        for q, (channel, receiver, member) in launched.queue_ends.items():
            described = launched.plan.channels[channel]
            number = receiver * described.members + member
            if not described.installed and queues[q, st.SENT] != queues[q, st.TAKEN]:
                raise QueueMisuse(f"messages of channel '{described.name}' are left in their queues")
            sent = int(places[launched.first_queues[channel] + number, st.QUEUE_SENT])
            if sent:
                found[described.name][number] = sent
        return found

    def _queue(self, channel: int, receiver: int, member: int, g: int, pc: int) -> None:
        launched = self.launch_of(g)
        plan, described = launched.plan, launched.plan.channels[channel]
        if not (0 <= receiver < plan.units and 0 <= member < described.members):
            raise QueueMisuse(f"there is no queue {member} of channel '{described.name}' at unit {receiver}")
        sender = int(launched.sources[channel]({"unit": receiver, "member": member}))
        if not 0 <= sender < plan.units:
            raise QueueMisuse(f"queue {described.label(member)} of unit {receiver} is fed by nobody")
        resources = launched.resources
        peer = int(launched.senders[channel]({"unit": receiver, "member": member}))
        key = None
        if described.installed:
            direction = described.names[member] if described.names else member
            key = (resources.level.name, resources.places[receiver], described.name, direction)
        number = self.installed.get(key) if key is not None else None
        if number is None:
            credit = resources.credit_ps(receiver, peer, described)
            ring = self.arena.extend("ring", described.slots, st.UNKNOWN)
            number = self.arena.append("queue", (
                0, 0, described.slots, ring, NONE, NONE, 0, credit, NONE, NONE, 0, 0,
            ))  # fmt: skip
            self.labels.append((described.label(member), resources.names[receiver], resources.names[sender]))
            if key is None:
                launched.own_queues.append(number)
            else:
                self.installed[key] = number
        here = np.isin([sender, receiver], launched.present)
        row = self.arena.rows("queue")[number]
        if here[0]:
            row[st.SENDER] = launched.first + sender
            row[st.VC] = DMA + resources.virtual_channel(described.name, peer, receiver)
        if here[1]:
            row[[st.RECEIVER, st.QCHANNEL, st.QMEMBER]] = (
                launched.first + receiver, launched.channels + channel, member,
            )  # fmt: skip
        launched.queue_ends[number] = (channel, receiver, member)
        place = launched.first_queues[channel] + receiver * described.members + member
        self.arena.put("queue_of", place, (number + 1, launched.first + sender if here[0] else NONE, 0))

    def _path(self, who: int, memories: int, source: int, target: int, g: int) -> None:
        launched = self.launch_of(g)
        resources, table = launched.resources, launched.table
        if source == -2:
            channel = max(i for i, first in enumerate(launched.first_queues) if first <= who)
            described = launched.plan.channels[channel]
            receiver, member = divmod(who - launched.first_queues[channel], described.members)
            sender = int(launched.senders[channel]({"unit": receiver, "member": member}))
            path = resources.path(
                sender, table.memories[memories], receiver, described.memory, described.chunk_bytes
            )
        else:
            unit = g - launched.first
            ends = []
            for storage, owner in zip(self.arena.rows("ask")[0, 6:8].tolist(), (source, target), strict=True):
                memory, name = table.storage_name(storage)
                ends.append((self._owner(launched, storage, name, owner, unit), memory))
            path = resources.path(*ends[0], *ends[1])
        self._remember(st.ASK_PATH, who, memories, source, target, self._number_path(path, resources))

    def _owner(self, launched: Launched, storage: int, name: str, owner: int, unit: int) -> int:
        """The unit at whose place a copy lies: for one that several share, oneself or the first of them."""
        if owner == NONE:
            return unit
        plan = launched.plan
        tile = plan.tile(name) if storage < launched.table.first_slot else None
        if tile is None or not tile.shared:
            if not 0 <= owner < plan.units:
                raise QueueMisuse(f"tile '{name}' has no owner {owner}")
            return owner
        units = np.arange(plan.units, dtype=np.int64)
        owners = np.broadcast_to(tile.owner.evaluate({"unit": units}), units.shape)
        if owners[unit] == owner:
            return unit
        found = np.flatnonzero(owners == owner)
        return int(found[0]) if len(found) else unit

    def _busy(self, pc: int, flops: int, nbytes: int, who: int, g: int) -> None:
        launched = self.launch_of(g)
        statement = self.rows.statements[pc]
        busy = launched.resources.compute_ps(statement, flops, g - launched.first)
        work = statement.work
        if who == NONE and constant(work.flops) is not None and constant(work.bytes) is not None:
            self.arena.rows("code")[pc, st.F] = busy
        self._remember(st.ASK_BUSY, pc, flops, nbytes, who, busy)

    def _meeting(self, pc: int, meeting: int, nbytes: int, _: int, g: int) -> None:
        launched = self.launch_of(g)
        members = launched.table.members[meeting - launched.meetings]
        statement = self.rows.statements[pc]
        if statement.kind == "broadcast" and symbols(statement.root) <= {"unit"}:
            root = int(statement.root.evaluate({"unit": g - launched.first}))
            if not 0 <= root < len(members):
                raise QueueMisuse(f"broadcast takes root {root} of a group of {len(members)}")
        delay = launched.resources.collective_ps(statement, members, nbytes)
        self._remember(st.ASK_MEETING, pc, meeting, nbytes, 0, delay)

    def _message(self, g: int, to: int, flag: int, _: int, pc: int) -> None:
        launched = self.launch_of(g)
        delay = launched.resources.message_ps(g - launched.first, to, SIGNAL_BYTES)
        self._remember(st.ASK_MESSAGE, g, to, flag, 0, delay)

    def _value(self, pc: int, g: int, count: int, *_: int) -> None:
        launched = self.launch_of(g)
        value = launched.scalars(self.rows.statements[pc], g - launched.first, count)
        self._remember(st.ASK_VALUE, pc, g, count, 0, int(value))

    def _delay(self, flow: int, number: int, path: int, nbytes: int, duration: int) -> None:
        launched = next(x for x in self.launches if flow in x.flows)
        faults = launched.resources.faults
        delay = faults.delay_ps(flow - launched.flows.start, number, duration)
        self._remember(st.ASK_DELAY, flow, number, path, nbytes, delay)

    # running

    def run(self, until: int = NEVER, deadline: float | None = None) -> Launched | None:
        """Go on until a launch has ended (it is returned), nothing can go on, or the time is over."""
        engine: Any = plain if self.engine != "compiled" else compiled()
        if self.engine is None and is_compiled():
            engine = compiled()
        while True:
            memory = self.arena.memory
            memory[st.UNTIL] = until
            steps = WARM_UP - self._steps if engine is plain and self.engine is None else 1 << 60
            memory[st.STEPS] = steps = steps if deadline is None else min(steps, BETWEEN_LOOKS)
            reason = engine.run(memory)
            self._steps += steps - int(memory[st.STEPS])
            if reason in (st.FINISHED, st.PAUSED):
                return None
            if reason == st.ENDED:
                return self.launches[int(self.arena.rows("ask")[0, 1])]
            if reason == st.BUDGET:
                if self.engine is None and self._steps >= WARM_UP:
                    engine = compiled()
                if deadline is not None and monotonic() > deadline:
                    return None
            elif reason == st.GROW:
                self._grow()
            else:
                asked = self.arena.rows("ask")[0, 1:6].tolist()
                (self._misuse if reason == st.MISUSE else self._answers[reason])(*asked)

    @property
    def clock_ps(self) -> int:
        """The time of the last event; whatever comes from outside comes later."""
        return int(self.arena.memory[st.CLOCK])

    def last_of(self, launched: Launched) -> int:
        """When the last thing of a launch ends."""
        return int(self.table("launch")[launched.number, st.LAUNCH_LAST])

    def _misuse(self, pc: int, g: int, what: int, a: int, b: int) -> None:
        statement = self.rows.statements[pc]
        channel = f"channel '{getattr(statement, 'channel', '')}'"
        texts = (
            f"a queue of {channel} is fed by the wrong unit",
            f"a message of {a} bytes does not fit a slot of {channel}",
            f"{channel} has messages of other sizes than those that are received",
            f"there is no flag {b} at unit {a}",
            "a unit meets at a collective in which it has no part",
        )
        raise QueueMisuse(texts[what])

    # what came out

    @property
    def last_ps(self) -> int:
        return int(self.arena.memory[st.LAST])

    def table(self, name: str) -> Any:
        """The rows of a table that are in use."""
        if name == "memo":
            return self.arena.rows(name)
        used = int(self.arena.memory[st.RECORDED]) if name == "record" else self.arena.used[name]
        return self.arena.rows(name)[:used]
