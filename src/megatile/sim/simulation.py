"""Plans on one machine: their tables, the engine's state, and the answers to what the engine asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.plan import model as pm
from megatile.sim import engine as plain
from megatile.sim import state as st
from megatile.sim.compiled import compiled, is_compiled
from megatile.sim.state import NONE, Arena
from megatile.sim.table import DMA, ENGINES, PlanTable, Rows
from megatile.timing.fabric import Path
from megatile.timing.resources import SIGNAL_BYTES, Resources

WARM_UP = 4000
"""Instructions that are run uncompiled before the compiled engine is loaded."""
MOST_RECORDS = 1 << 20
"""Commands that are recorded unless more are asked for."""
MOST_QUEUES = 1 << 14
"""Up to so many queues it is found out beforehand which links only one of them uses."""
Scalars = Callable[[pm.ReadScalar, Any, Any], Any]

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


class Launched:
    """One plan that was submitted: its instances, and how the machine answers for it."""

    def __init__(self, table: PlanTable, resources: Resources, scalars: Scalars, first: int) -> None:
        self.table = table
        self.plan = table.plan
        self.resources = resources
        self.scalars = scalars
        self.first = first
        """Its first instance."""
        self.channels = 0
        self.flags = 0
        self.meetings = 0
        self.flows = 0
        self.first_queues: list[int] = []
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
        self.tables: dict[int, PlanTable] = {}
        self.launches: list[Launched] = []
        self.owner: list[int] = []
        self.everything_shared = everything_shared
        self.shared: set[Any] = set()
        """Keys of the resources that more than one flow uses."""
        self.servers: dict[Any, int] = {}
        self.server_keys: list[Any] = []
        self.paths: list[Path] = []
        self._path_numbers: dict[int, int] = {}
        self.queues: list[tuple[Launched, int, int, int]] = []
        """Of every queue in use: who uses it, channel, receiver, member."""
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
        if records + 2 * live + 8 > arena.size("record"):
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

    def add(self, plan: pm.Plan, resources: Resources, scalars: Scalars, *, start: Any = None) -> Launched:
        """Submit a plan: its instances are ready at their start."""
        rows = self.rows
        table = self.tables.get(id(plan))
        if table is None:
            table = self.tables[id(plan)] = PlanTable(plan, rows)
            self._tabulate()
        units = plan.units
        launched = Launched(table, resources, scalars, self.arena.used["unit"])
        number = len(self.launches)
        self.launches.append(launched)
        self.arena.make_room(self._words(table))
        self._declare(launched)
        if self.most_records:
            room = min(self.most_records, int(1.3 * commands(plan)) + 64)
            self.arena.reserve("record", int(self.arena.memory[st.RECORDED]) + room)
            self.arena.reserve("aux", int(self.arena.memory[st.AUX]) + 12 * room + 8192)
        self.arena.extend("unit", units)
        self._find_shared(launched)
        self._instances(launched, number, start)
        self.owner += [number] * units
        return launched

    def _words(self, table: PlanTable) -> int:
        """About how much memory a launch takes."""
        units = table.plan.units
        frame = max((len(s.frame) for s in table.streams), default=1)
        records = min(self.most_records, int(1.3 * commands(table.plan)) + 64) if self.most_records else 0
        each = frame + 4 * (table.storages + 32) + sum(c.members for c in table.plan.channels) + 128
        return units * each + records * (st.WIDTHS["record"] + 12) + (1 << 16)

    def _tabulate(self) -> None:
        """The tables of all plans as arrays."""
        rows, arena = self.rows, self.arena
        for name in ("code", "expr", "bytecode", "constants", "lists", "region", "tile", "alias"):
            arena.assign(name, getattr(rows, name))
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
        flows = arena.used["queue_of"] + 2 * arena.used["unit"]
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
                flows,
            )
            arena.rows("channel")[launched.channels + i] = row
            flows += count
        launched.flows = flows
        launched.flags = arena.extend("flag", len(plan.flags))
        for i, flag in enumerate(plan.flags):
            first = arena.extend("counter", plan.units * flag.members)
            arena.rows("flag")[launched.flags + i] = (first, flag.members, plan.units)
            arena.rows("counter")[first : first + plan.units * flag.members, [st.FLAG_WAITER, st.FLAG_BY]] = (
                NONE
            )
        launched.meetings = arena.extend("meeting", len(table.members))
        for i, members in enumerate(table.members):
            arena.rows("meeting")[launched.meetings + i] = (0, len(members), 0, NONE, NONE)
        at = arena.extend("launch", 1)
        arena.rows("launch")[at] = (
            table.memory_base, table.first_slot, table.alias_base,
            launched.channels, launched.flags, launched.meetings,
        )  # fmt: skip
        if table.memories:
            private = np.array([int(not launched.resources.memory(name)[2]) for name in table.memories])
            memory = arena.rows("memory_of")[table.memory_base : table.memory_base + table.storages]
            memory[:, 1] = private[memory[:, 0]]

    def _instances(self, launched: Launched, number: int, start: Any) -> None:
        plan, table, arena, resources = launched.plan, launched.table, self.arena, launched.resources
        first, units = launched.first, plan.units
        numbers = np.arange(units)
        slots = table.storages - table.first_slot
        engines = DMA + resources.dma.channels
        begins = {
            st.STORE: (arena.extend("heads", table.storages * units, NONE), table.storages),
            st.HOLD: (arena.extend("held", slots * units), slots),
            st.ENGINES: (arena.extend("tails", engines * units), engines),
        }
        frames = [(s, np.fromiter(s.stream.unit_numbers(), dtype=np.int64)) for s in table.streams]
        for stream, members in frames:
            size = len(stream.frame)
            at = arena.extend("frame", size * len(members))
            block = arena.rows("frame")[at : at + size * len(members)].reshape(-1, size)
            block[:] = stream.frame
            block[:, 0] = members
            u = arena.rows("unit")
            u[first + members, st.FRAME] = at + size * np.arange(len(members))
            u[first + members, st.PC] = stream.first
        u = arena.rows("unit")[first : first + units]
        u[:, [st.CAUSE, st.SHARED, st.WAITS, st.SINCE, st.NEXT]] = NONE
        u[:, st.NUMBER] = numbers
        u[:, st.LAUNCH] = number
        u[:, st.FLOW] = launched.flows + numbers
        u[:, st.NOW] = resources.start_ps(0) if start is None else start
        u[:, st.STATE] = st.READY
        for column, (at, width) in begins.items():
            u[:, column] = at + width * numbers
        self._engines(launched, begins[st.ENGINES][0], engines)
        ready = int(arena.memory[st.READIES])
        arena.reserve("ready", arena.used["unit"] + 64)
        arena.rows("ready")[ready : ready + units] = np.arange(first + units - 1, first - 1, -1)
        arena.memory[st.READIES] = ready + units
        arena.memory[st.JITTER] |= int(resources.faults.jitter is not None)
        if resources.faults.straggler:
            code = arena.rows("code")
            code[code[:, st.KIND] == st.WORK, st.G] = 1

    def _engines(self, launched: Launched, first: int, engines: int) -> None:
        """The queues of every instance's engines; several instances may share an engine."""
        units, resources = launched.plan.units, launched.resources
        self.arena.rows("tails")[first : first + engines * units] = (0, NONE, NONE, NONE)
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
            rows = memo[memo[:, 0] != NONE].tolist()
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
        return self.launches[self.owner[g]]

    def name(self, g: int) -> str:
        """Where an instance stands."""
        launched = self.launch_of(g)
        return launched.resources.names[g - launched.first]

    def label(self, queue: int) -> str:
        launched, channel, _, member = self.queues[queue]
        return launched.plan.channels[channel].label(member)

    def messages(self, launched: Launched) -> dict[str, dict[int, int]]:
        """Per channel, how many messages went through each queue (receiver * members + member)."""
        found: dict[str, dict[int, int]] = {c.name: {} for c in launched.plan.channels}
        for row, (owner, channel, receiver, member) in zip(
            self.table("queue").tolist(), self.queues, strict=True
        ):
            if owner is not launched:
                continue
            described = launched.plan.channels[channel]
            if row[st.SENT] != row[st.TAKEN] and not described.installed:
                raise QueueMisuse(f"messages of channel '{described.name}' are left in their queues")
            if row[st.SENT]:
                found[described.name][receiver * described.members + member] = row[st.SENT]
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
        vc = resources.virtual_channel(described.name, peer, receiver)
        credit = resources.credit_ps(receiver, peer, described)
        ring = self.arena.extend("ring", described.slots, st.UNKNOWN)
        number = self.arena.append("queue", (
            0, 0, described.slots, ring, launched.first + sender, launched.first + receiver, DMA + vc, credit,
            NONE, NONE, launched.channels + channel, member,
        ))  # fmt: skip
        place = launched.first_queues[channel] + receiver * described.members + member
        self.arena.put("queue_of", place, (number + 1,))
        self.queues.append((launched, channel, receiver, member))

    def _path(self, who: int, memories: int, source: int, target: int, g: int) -> None:
        launched = self.launch_of(g)
        resources, table = launched.resources, launched.table
        if source == -2:
            _, channel, receiver, member = self.queues[who]
            described = launched.plan.channels[channel]
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
        delay = self.launches[-1].resources.faults.delay_ps(flow, number, duration)
        self._remember(st.ASK_DELAY, flow, number, path, nbytes, delay)

    # running

    def run(self) -> None:
        """Go on until nothing can."""
        engine: Any = plain if self.engine != "compiled" else compiled()
        if self.engine is None and is_compiled():
            engine = compiled()
        while True:
            memory = self.arena.memory
            memory[st.STEPS] = steps = (
                WARM_UP - self._steps if engine is plain and self.engine is None else 1 << 60
            )
            reason = engine.run(memory)
            self._steps += steps - int(memory[st.STEPS])
            if reason == st.FINISHED:
                return
            if reason == st.BUDGET:
                engine = compiled()
            elif reason == st.GROW:
                self._grow()
            else:
                asked = self.arena.rows("ask")[0, 1:6].tolist()
                (self._misuse if reason == st.MISUSE else self._answers[reason])(*asked)

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
