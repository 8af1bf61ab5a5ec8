"""What the engine recorded, as a Trace and as the use of links and memories."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from megatile.core.errors import Place
from megatile.core.expr import constant
from megatile.core.quantities import format_bytes, format_time
from megatile.hda.routing import Link
from megatile.sim import state as st
from megatile.sim.instructions import RECEIVE, RECEIVE_ANY, SEND, SIGNAL, WORK
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.simulation import Simulation
from megatile.sim.state import NONE, Answer, CacheRow, LaunchRow, Recorded
from megatile.sim.table import ENGINES
from megatile.timing.fabric import Path
from megatile.timing.library_commands import LIBRARY_KERNEL
from megatile.trace import LAUNCH, Counter, Trace
from megatile.trace.exposure import COMMUNICATION, WAITING, covered_ps, engine_kind, uncovered_ps

MAX_COUNTERS = 256
NAMES = {st.INTO: "receive into", RECEIVE_ANY: "receive any", st.BEGIN: "wait for the unit"}
"""What events are called that are not called what `event_name` of their statement returns."""
PLACES = {RECEIVE: "channel", SIGNAL: "channel"}
"""The engine of commands that have none; all others hold up the control."""


_BOUNDS = (1 << st.ACCESS_BITS) - 2
"""Of what an access is, how many bounds it has."""


def event_name(statement: Any) -> str:
    """Return what a command does: its operation, a library kernel's name, or its word."""
    name: str = getattr(statement, "operation", "") or getattr(statement, "kind", "") or statement.word
    return str(dict(statement.attributes).get("name", name)) if name == LIBRARY_KERNEL else name


def source_of(place: Place | None) -> str:
    """``file:line`` of a statement, or nothing."""
    if place is None or place.file is None:
        return ""
    return f"{place.file}:{place.line}" if place.line is not None else place.file


class Traffic(NamedTuple):
    """What went through a memory layer; hits and misses count the blocks that a cache was asked for."""

    read_bytes: int = 0
    written_bytes: int = 0
    hits: int = 0
    misses: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Of what a cache was asked for, the share that it had; None where nothing asked, or it is none."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else None

    @property
    def hit_text(self) -> str:
        return "" if self.hit_rate is None else f"{self.hit_rate:.1%} hits"


@dataclass(frozen=True)
class Usage:
    """Busy ps per kind of engine, shares of the whole time, bytes by name, exposed ps per unit."""

    busy: dict[str, int]
    units: dict[str, int]
    """On how many units of the hardware each kind of engine works."""
    covered: dict[str, int]
    """Ps in which each kind of engine works, added up over those units: what goes on at once counts once."""
    links: dict[str, float]
    memories: dict[str, float]
    bytes_on: dict[str, int]
    exposed: dict[str, int]


class Touched(NamedTuple):
    """An access of a command: its storage, dimensions and whether it writes in one number (`ACCESS_BITS`),
    its owner, and start and extent of each dimension."""

    what: int
    owner: int
    bounds: Any


class _Names(dict[str, int]):
    """Texts and their numbers."""

    def __call__(self, text: str) -> int:
        return self.setdefault(text, len(self))


class Record:
    """The records of one launch, its first instance counted as unit 0.

    With ``origin_ps`` (when the launch was submitted) times count from there, and nothing of the engine's
    memory is used later.
    """

    def __init__(self, simulation: Simulation, launched: LaunchRows, origin_ps: int | None = None) -> None:
        self.launched = launched
        self.statements = simulation.rows.statements
        self._paths, self._known = simulation.paths, dict[int, Path]()
        self.queue_ends = launched.queue_ends
        answers = simulation.table("answers")
        self.answers = answers[answers[:, Answer.question] == st.ASK_BUSY]
        """How long commands take whose work is not the same every time."""
        self.operands = simulation.operands
        """Whether it is known what commands touch."""
        self.aux = simulation.arena.rows("recorded_accesses")
        self.first_aux = simulation.arena.words_base
        base = simulation.arena.record_base
        rows = simulation.table("records")[max(0, launched.first_record - base) :]
        who = rows[:, Recorded.actor]
        self.units = launched.offsets[-1]
        """How many instances there are, of all levels."""
        self.places = launched.places.copy()
        self.names = launched.names(self.places)
        mine = (who >= launched.first) & (who < launched.first + self.units)
        chosen = np.flatnonzero(mine & (rows[:, Recorded.kind] != st.RELEASE))
        self.numbers = chosen + max(base, launched.first_record)
        """Of every record, its number among those of all launches."""
        # Where that is all and times stay as they are, a look at them is enough.
        self.rows = rows if len(chosen) == len(rows) and origin_ps is None else rows[chosen]
        self.caches = [
            (name, *ends) for (name, _), ends in zip(self._paths.caches, self._paths.behind, strict=True)
        ]
        """Of every cache: its name, and the name and key of what is behind it."""
        self.cached = simulation.table("caches").copy()
        self.cached[: len(launched.caches)] -= launched.caches
        self.releases = rows[mine & (rows[:, Recorded.kind] == st.RELEASE)]
        self.present = np.arange(self.units)
        if not launched.plan.levels:
            self.present = np.flatnonzero(launched.present)
        self.start_ps = int(simulation.table("launches")[launched.number, LaunchRow.began]) - (origin_ps or 0)
        """When its units begin, if nothing is before them."""
        self.lasting_queues = {q: key for key, q in simulation.lasting_queues.items() if q in self.queue_ends}
        self.events: Any = None
        """Of every record, its event in the trace, once there is one."""
        if origin_ps is not None:
            for part in (self.rows, self.releases):
                for column in (Recorded.start, Recorded.end, Recorded.arrived):
                    part[:, column] = np.where(part[:, column] >= 0, part[:, column] - origin_ps, NONE)
            used = self.rows[self.rows[:, Recorded.accesses] >= 0, Recorded.accesses]
            first = max(self.first_aux, int(used.min()) if len(used) else launched.first_aux)
            last = simulation.arena.recorded_words
            self.aux, self.first_aux = self.aux[first - self.first_aux : last].copy(), first

    def path(self, number: int) -> Path:
        """A path by its number."""
        if number not in self._known:
            self._known[number] = self._paths.described(number, self.launched.resources.fabric)
        return self._known[number]

    def trace(self, delay_ps: int = 0) -> Trace:
        """Every command as an event, unit by unit in order of issue; ``delay_ps`` is what kernels spend
        first, before the control path is travelled."""
        present = self.present
        begin_ps = delay_ps + (self.start_ps if len(present) else 0)
        order = np.argsort(self.rows[:, Recorded.actor], kind="stable")
        rows = self.rows[order]
        unit = np.searchsorted(present, rows[:, Recorded.actor] - self.launched.first)
        tables = {name: _Names() for name in ("units", "engines", "operations", "operands", "sources")}
        units, names = len(present), [self.names[i] for i in present.tolist()]
        columns: dict[str, Any] = {}
        launches = units if begin_ps else 0
        before = np.searchsorted(unit, np.arange(units)) if len(rows) else np.zeros(units, dtype=np.int64)
        # Where every row goes: after the launches of its own and all earlier units.
        place = np.arange(len(rows)) + (unit + 1 if launches else 0)
        at_launch = before + np.arange(units)
        total = len(rows) + launches

        def column(values: Any, of_launches: Any) -> Any:
            made = np.empty(total, dtype=np.int64)
            made[place] = values
            if launches:
                made[at_launch] = of_launches
            return made

        for name in names:
            tables["units"](name)
        shown = [tables["units"](name) for name in names]
        columns["unit"] = column(np.array(shown, dtype=np.int64)[unit] if units else unit, shown)
        codes = self._texts(rows, tables)
        columns["engine"] = column(codes["engine"], tables["engines"]("control") if launches else 0)
        columns["operation"] = column(
            codes["operation"], tables["operations"](f"{LAUNCH} {self.launched.plan.name}") if launches else 0
        )
        columns["source"] = column(codes["source"], tables["sources"]("") if launches else 0)
        columns["operand"] = column(codes["operand"], tables["operands"]("") if launches else 0)
        start = np.maximum(rows[:, Recorded.start], 0)
        columns["start_ps"] = column(start + delay_ps, 0)
        columns["end_ps"] = column(np.maximum(start, rows[:, Recorded.end]) + delay_ps, begin_ps)
        columns["bytes"] = column(rows[:, Recorded.nbytes], 0)
        columns["cause"] = column(self._causes(rows, order, place, unit, at_launch, launches), NONE)
        return Trace(
            **{name: tuple(table) for name, table in tables.items()},
            columns=columns, flows=self._flows(rows, place), counters=self._counters(rows, delay_ps),
            machine=self.launched.resources.hda.name,
        )  # fmt: skip

    def _engine_names(self) -> list[str]:
        """Queues of the DMA engine for messages are counted as far as they are used: ``dma.1``, …"""
        channels = max(view.message_queues for view in self.launched.views)
        own = self.launched.table.engine_names
        names, used = [*own, *[""] * (channels - 1)], np.unique(self.rows[:, Recorded.engine])
        for i, engine in enumerate(used[used >= len(own)].tolist(), 1):
            names[engine] = f"dma.{i}"
        return names

    def _texts(self, rows: Any, tables: dict[str, _Names]) -> dict[str, Any]:
        """The numbers of engine, operation, source and operands of every row."""
        engines = self._engine_names()
        statements = self.statements
        keys = rows[:, [Recorded.pc, Recorded.kind, Recorded.engine]]
        kinds, inverse = (
            np.unique(keys, axis=0, return_inverse=True) if len(rows) else (keys, np.zeros(0, dtype=int))
        )
        inverse = inverse.reshape(-1)
        found = np.empty((len(kinds), 3), dtype=np.int64)
        for i, (at, kind, engine) in enumerate(kinds.tolist()):
            statement = statements[at]
            name = NAMES.get(kind) or event_name(statement)
            where = engines[engine] if engine != NONE else PLACES.get(kind, "control")
            found[i] = (
                tables["engines"](where),
                tables["operations"](name),
                tables["sources"](source_of(statement.source) if statement is not None else ""),
            )
        texts = self._operands(rows, tables["operands"])
        made = {name: found[inverse, i] for i, name in enumerate(("engine", "operation", "source"))}
        return {**made, "operand": texts}

    def _operands(self, rows: Any, names: _Names) -> Any:
        """The blocks each command touches, with their memories: ``local:x[0:4] -> common:y``."""
        numbers, touched = self._touched(rows)
        texts = [names(_operand_text(each, self.launched.table)) for each in touched]
        return np.array(texts, dtype=np.int64)[numbers]

    def _touched(self, rows: Any) -> tuple[Any, list[list[Touched]]]:
        """Of every row the number of what it touches, and what that is."""
        aux, numbers = self.aux, np.zeros(len(rows), dtype=np.int64)
        known: dict[bytes, int] = {}
        found: list[list[Touched]] = [[]]
        for i, at in enumerate(rows[:, Recorded.accesses].tolist()):
            if at == NONE:
                continue
            at -= self.first_aux
            end = at + 1
            for _ in range(int(aux[at])):
                end += 2 + (int(aux[end]) & _BOUNDS)
            key = aux[at + 1 : end].tobytes()
            if key not in known:
                known[key] = len(found)
                found.append(_accesses(aux[at + 1 : end]))
            numbers[i] = known[key]
        return numbers, found

    def memory_bytes(self) -> dict[str, int]:
        """Bytes that commands read from and wrote to each memory, most first: those of a command count for
        each of its operands."""
        numbers, touched = self._touched(self.rows)
        moved = np.bincount(numbers, self.rows[:, Recorded.nbytes], len(touched)).astype(np.int64).tolist()
        found: dict[str, int] = {}
        for each, nbytes in zip(touched, moved, strict=True):
            for access in each if nbytes else ():
                memory, _ = self.launched.table.storage_name(access.what >> st.ACCESS_BITS)
                found[memory] = found.get(memory, 0) + nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _causes(self, rows: Any, order: Any, place: Any, unit: Any, at_launch: Any, launches: int) -> Any:
        """Numbers of events instead of records; what nothing held up was released by its launch."""
        events = np.full(len(order) + 1, NONE, dtype=np.int64)
        events[order] = place
        self.events = events[:-1]
        cause = rows[:, Recorded.cause]
        number = np.minimum(np.searchsorted(self.numbers, cause), max(0, len(order) - 1))
        known = self.numbers[number] == cause if len(order) else np.zeros(0, dtype=bool)
        found = events[np.where(known, number, len(order))]
        return np.where(found == NONE, at_launch[unit], found) if launches else found

    def messages(self, rows: Any = None) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """By queue and number, the rows that sent and that received a message."""
        rows = self.rows if rows is None else rows
        sent: dict[tuple[int, int], int] = {}
        received: dict[tuple[int, int], int] = {}
        kinds = rows[:, Recorded.kind]
        for kind, found in ((SEND, sent), (RECEIVE, received), (RECEIVE_ANY, received), (st.INTO, received)):
            chosen = np.flatnonzero(kinds == kind)
            pairs = rows[chosen][:, [Recorded.queue, Recorded.message]].tolist()
            for row, (queue, message) in zip(chosen.tolist(), pairs, strict=True):
                found.setdefault((queue, message), row)
        return sent, received

    def message_lines(self, begin_ps: int = 0) -> list[str]:
        """Every message as a line, in order of time: who to whom, bytes, when it is there, its queue (the
        direction as the receiver calls it) and number, and the line that sends it."""
        found = []
        for row in self.rows[self.rows[:, Recorded.kind] == SEND].tolist():
            sent = Recorded(row)
            channel, receiver, member = self.queue_ends[sent.queue]
            source = self.statements[sent.pc].source
            plan, described = self.launched.plan, self.launched.plan.channels[channel]
            first = self.launched.offsets[self.launched.table.levels[plan.level(described.level).name]]
            ends = f"{self.names[sent.actor - self.launched.first]} -> {self.names[first + receiver]}"
            size, there = format_bytes(sent.nbytes), format_time(begin_ps + sent.arrived)
            text = f"{ends} {size}, there at {there}, {described.label(member)} #{sent.message}"
            found.append((sent.start, text + (f"  {source}" if source else "")))
        return [f"[comm] {format_time(begin_ps + start)} {text}" for start, text in sorted(found)]

    def _flows(self, rows: Any, place: Any) -> Any:
        sent, received = self.messages(rows)
        pairs = [(place[sent[key]], place[row]) for key, row in received.items() if key in sent]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def arrivals(self) -> dict[int, list[int]]:
        """When messages arrived, by queue: those of the first channel first, then by receiver and member."""
        plan = self.launched.plan
        first = np.cumsum([0, *(plan.instances(c.level) * c.members for c in plan.channels)]).tolist()
        found: dict[int, list[int]] = {}
        sends = self.rows[self.rows[:, Recorded.kind] == SEND]
        for queue, time in sends[:, [Recorded.queue, Recorded.arrived]].tolist():
            channel, receiver, member = self.queue_ends[queue]
            number = first[channel] + receiver * plan.channels[channel].members + member
            found.setdefault(number, []).append(time)
        return found

    def _counters(self, rows: Any, delay_ps: int) -> tuple[Counter, ...]:
        sends = rows[rows[:, Recorded.kind] == SEND]
        counters = []
        steps: dict[str, list[tuple[Any, int]]] = {}
        for queue in np.unique(sends[:, Recorded.queue]).tolist():
            channel, receiver, member = self.queue_ends[queue]
            described = self.launched.plan.channels[channel]
            level = self.launched.table.levels[self.launched.plan.level(described.level).name]
            name = self.names[self.launched.offsets[level] + receiver]
            label = f"queue {name} {described.label(member)}"
            arrived = sends[sends[:, Recorded.queue] == queue, Recorded.arrived]
            freed = self.releases[self.releases[:, Recorded.queue] == queue, Recorded.end]
            steps[label] = [(arrived, 1), (freed, -1)]
        for label in sorted(steps)[:MAX_COUNTERS]:
            counters.append(_counter(label, steps[label]))
        if len(sends):
            counters.append(
                _counter(
                    "messages on links",
                    [(sends[:, Recorded.start], 1), (sends[:, Recorded.arrived], -1)],
                )
            )
        return tuple(Counter(c.name, c.time_ps + delay_ps, c.value) for c in counters)

    def resources(self) -> tuple[dict[Any, int], dict[Any, int]]:
        """Busy time and bytes of every link and memory on a path, by its key."""
        spent: dict[Any, int] = {}
        moved: dict[Any, int] = {}
        for path, nbytes, count in self._moved:
            described = self.path(path)
            for stage, busy in zip(described.stages, described.stage_ps(nbytes)[1], strict=True):
                if (key := stage.resource) is not None:
                    spent[key] = spent.get(key, 0) + busy * count
                    moved[key] = moved.get(key, 0) + nbytes * count
        for row, (_, _, key) in zip(self.cached.tolist(), self.caches, strict=True):
            spent[key] = spent.get(key, 0) + row[CacheRow.spent]
            moved[key] = moved.get(key, 0) + row[CacheRow.filled] + row[CacheRow.evicted]
        return spent, moved

    def traffic(self) -> dict[str, Traffic]:
        """What was read from and written to every memory layer, and how its blocks were found."""
        found: dict[str, list[int]] = {}

        def add(name: str, *counts: int) -> None:
            found[name] = [a + b for a, b in zip(found.get(name, [0] * 4), (*counts, 0, 0), strict=False)]

        for path, nbytes, count in self._moved:
            described = self.path(path)
            for write, (name, caches) in enumerate(
                zip(described.memories, (described.reads, described.writes), strict=True)
            ):
                if not caches:
                    add(
                        self.launched.resources.hda.memory(name).name,
                        *((0, nbytes * count) if write else (nbytes * count, 0)),
                    )
        for row, (name, behind, _) in zip(self.cached.tolist(), self.caches, strict=True):
            add(name, row[CacheRow.read], row[CacheRow.written], row[CacheRow.hits], row[CacheRow.misses])
            add(behind, row[CacheRow.filled], row[CacheRow.evicted])
        return {name: Traffic(*counts) for name, counts in found.items()}

    @cached_property
    def _moved(self) -> list[tuple[int, int, int]]:
        """How many transfers of each size went over each path."""
        used = self.rows[:, Recorded.path] != NONE
        if not used.any():
            return []
        paths, path = np.unique(self.rows[used, Recorded.path], return_inverse=True)
        nbytes = self.rows[used, Recorded.nbytes]
        size = int(nbytes.max()) + 1
        pairs, counts = np.unique(path * size + nbytes, return_counts=True)
        numbers = paths[pairs // size].tolist()
        return list(zip(numbers, (pairs % size).tolist(), counts.tolist(), strict=True))

    def _work(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
        """Busy time per kind of engine, on how many hardware units, how much of their time that covers; per
        unit, time in which it communicates and computes nothing."""
        rows, names = self.rows, self._engine_names()
        start = np.maximum(rows[:, Recorded.start], 0)
        end = np.maximum(start, rows[:, Recorded.end])
        engine = rows[:, Recorded.engine].copy()
        for kind, name in PLACES.items():
            engine[(engine == NONE) & (rows[:, Recorded.kind] == kind)] = names.index(name)
        engine[engine == NONE] = names.index("control")
        unit = rows[:, Recorded.actor] - self.launched.first
        spent = np.bincount(engine, end - start, len(names))
        used = np.bincount(engine, minlength=len(names))
        busy, units, covered = dict[str, int](), dict[str, int](), dict[str, int]()
        places = self.places + (np.searchsorted(self.launched.offsets, np.arange(self.units), "right") << 40)
        for name in dict.fromkeys(
            engine_kind(n) for n, count in zip(names, used.tolist(), strict=True) if count
        ):
            numbers = [i for i, other in enumerate(names) if engine_kind(other) == name]
            if name not in WAITING:
                rows_of = np.isin(engine, numbers)
                mine, place = np.unique(places[unit[rows_of]], return_inverse=True)
                busy[name] = covered[name] = int(spent[numbers].sum())
                units[name] = len(mine)
                if name in COMMUNICATION:  # an engine that computes does one thing at a time
                    covered[name] = int(covered_ps(place, start[rows_of], end[rows_of], len(mine)).sum())
        working = np.array([engine_kind(name) not in COMMUNICATION for name in names])[engine]
        exposed = uncovered_ps(unit, start, end, working, self.units).tolist()
        return busy, units, covered, dict(zip(self.names, exposed, strict=True))

    def usage(self, whole_ps: int) -> Usage:
        spent, moved = self.resources()
        widths = self.launched.resources.fabric.widths
        tables: tuple[dict[str, float], dict[str, float]] = ({}, {})
        named: dict[str, int] = {}
        for key, time in spent.items():
            name = self._name(key)
            tables[isinstance(key, tuple) and key[0] == "memory"][name] = (
                time / max(1, whole_ps) / widths[key]
            )
            named[name] = named.get(name, 0) + moved[key]
        busy, units, covered, exposed = self._work()
        return Usage(busy, units, covered, tables[0], tables[1], named, exposed)

    def _name(self, key: Any) -> str:
        if isinstance(key, Link):
            network = self.launched.resources.hda.network(key.network)
            start, stop = network.topology.ends(key.number)
            owner = f"[{key.owner}]" if key.owner else ""
            return f"{key.network}{owner} {start}->{stop}"
        return " ".join(str(part) for part in key[:2]) + f"[{', '.join(str(p) for p in key[2:])}]"

    def flops(self) -> dict[tuple[str, str], int]:
        """Operations done, by engine and dtype."""
        found: dict[tuple[str, str], int] = {}
        rows = self.rows[self.rows[:, Recorded.kind] == WORK]
        for at in np.unique(rows[:, Recorded.pc]).tolist():
            statement, mine = self.statements[at], rows[rows[:, Recorded.pc] == at]
            flops = constant(statement.work.flops)
            if flops is not None:
                total = int(flops) * len(mine)
            else:
                # Commands of one statement that take equally long do equally much.
                lengths, counts = np.unique(
                    mine[:, Recorded.end] - mine[:, Recorded.start], return_counts=True
                )
                asked = self.answers[self.answers[:, Answer.a] == at]
                by_length = dict(asked[:, [Answer.value, Answer.b]].tolist())
                total = sum(
                    by_length.get(t, 0) * c for t, c in zip(lengths.tolist(), counts.tolist(), strict=True)
                )
            key = (statement.engine, statement.work.dtype)
            found[key] = found.get(key, 0) + total
        return found

    def work_ps(self, engine: str) -> list[int]:
        """Per unit, how long an engine works."""
        rows = self.rows[
            (self.rows[:, Recorded.kind] == WORK) & (self.rows[:, Recorded.engine] == ENGINES.index(engine))
        ]
        busy = np.zeros(self.units, dtype=np.int64)
        np.add.at(
            busy,
            rows[:, Recorded.actor] - self.launched.first,
            rows[:, Recorded.end] - rows[:, Recorded.start],
        )
        found: list[int] = busy.tolist()
        return found


def _accesses(words: Any) -> list[Touched]:
    """What a command touches, as it was recorded."""
    found, at = list[Touched](), 0
    while at < len(words):
        what, owner = words[at : at + 2].tolist()
        found.append(Touched(what, owner, words[at + 2 : at + 2 + (what & _BOUNDS)]))
        at += 2 + (what & _BOUNDS)
    return found


def _operand_text(touched: list[Touched], table: Any) -> str:
    reads: list[str] = []
    writes: list[str] = []
    for what, owner, bounds in touched:
        memory, name = table.storage_name(what >> st.ACCESS_BITS)
        edges = ", ".join(f"{i}:{i + n}" for i, n in bounds.reshape(-1, 2).tolist())
        text = f"{memory}:{name}[{edges}]" if edges else f"{memory}:{name}"
        (writes if what & 1 else reads).append(text + (f"@{owner}" if owner != NONE else ""))
    left = ", ".join(reads)
    return f"{left} -> {', '.join(writes)}" if writes else left


def _counter(name: str, steps: list[tuple[Any, int]]) -> Counter:
    times = np.concatenate([t for t, _ in steps])
    changes = np.concatenate([np.full(len(t), change) for t, change in steps])
    order = np.lexsort((changes, times))
    levels = np.cumsum(changes[order])
    moments = times[order]
    last = np.append(moments[1:] != moments[:-1], True) if len(moments) else np.zeros(0, dtype=bool)
    return Counter(name, moments[last], levels[last])


def choices(simulation: Simulation, launched: LaunchRows) -> dict[Any, list[int]]:
    """Per unit, the members its receive-from-any took."""
    if not simulation.complete_record:
        raise simulation.arena.no_room("records")
    found: dict[Any, list[int]] = {}
    rows = simulation.table("records")
    rows = rows[rows[:, Recorded.kind] == RECEIVE_ANY]
    for who, queue in rows[:, [Recorded.actor, Recorded.queue]].tolist():
        if 0 <= who - launched.first < launched.offsets[-1]:
            found.setdefault(launched.chooser(who), []).append(launched.queue_ends[queue][2])
    return found
