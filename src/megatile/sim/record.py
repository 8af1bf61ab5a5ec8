"""What the engine recorded, as a Trace."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim import state as st
from megatile.sim.instructions import RECEIVE_ANY, SEND
from megatile.sim.recorded_rows import Touched, source_of
from megatile.sim.state import NONE, Recorded
from megatile.sim.usage import PLACES, RecordedUsage
from megatile.timing.library_commands import LIBRARY_KERNEL
from megatile.trace import LAUNCH, Counter, Trace

MAX_COUNTERS = 256
"""Counters in a Trace."""
NAMES = {st.INTO: "receive into", RECEIVE_ANY: "receive any", st.BEGIN: "wait for the unit"}
"""What events are called that are not called what `event_name` of their statement returns."""


def event_name(statement: Any) -> str:
    """Return what a command does: its operation, a library kernel's name, or its word."""
    name: str = getattr(statement, "operation", "") or getattr(statement, "kind", "") or statement.word
    return str(dict(statement.attributes).get("name", name)) if name == LIBRARY_KERNEL else name


class _Names(dict[str, int]):
    """Texts and their numbers."""

    def __call__(self, text: str) -> int:
        return self.setdefault(text, len(self))


class Record(RecordedUsage):
    """The records of one launch, also as a trace."""

    def trace(self, delay_ps: int = 0, operands: bool = True) -> Trace:
        """Every command as an event, unit by unit in order of issue; ``delay_ps`` is what kernels spend
        first, before the control path is travelled. Without ``operands`` nothing says what they touch, which
        takes most of the time to find."""
        present = self.present
        begin_ps = delay_ps + (self.start_ps if len(present) else 0)
        order = np.argsort(self.rows[:, Recorded.actor], kind="stable")
        rows = self.rows[order]
        unit = np.searchsorted(present, rows[:, Recorded.actor] - self.launched.first)
        tables = {name: _Names() for name in ("units", "engines", "operations", "operands", "sources")}
        units, names = len(present), [self.names[i] for i in present.tolist()]
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

        shown = [tables["units"](name) for name in names]
        codes = self._texts(rows, tables, operands)
        start = np.maximum(rows[:, Recorded.start], 0)
        told = {"engines": "control", "operations": f"{LAUNCH} {self.launched.plan.name}"}
        of_launch = {kind: tables[kind](told.get(kind, "")) if launches else 0 for kind in list(tables)[1:]}
        columns = {
            "unit": column(np.array(shown, dtype=np.int64)[unit] if units else unit, shown),
            "engine": column(codes["engine"], of_launch["engines"]),
            "operation": column(codes["operation"], of_launch["operations"]),
            "source": column(codes["source"], of_launch["sources"]),
            "operand": column(codes["operand"], of_launch["operands"]),
            "start_ps": column(start + delay_ps, 0),
            "end_ps": column(np.maximum(start, rows[:, Recorded.end]) + delay_ps, begin_ps),
            "bytes": column(rows[:, Recorded.nbytes], 0),
            "cause": column(self._causes(rows, order, place, unit, at_launch, launches), NONE),
        }
        return Trace(
            **{name: tuple(table) for name, table in tables.items()},
            columns=columns, flows=self._flows(rows, place), counters=self._counters(rows, delay_ps),
            machine=self.launched.resources.hda.name,
        )  # fmt: skip

    def _texts(self, rows: Any, tables: dict[str, _Names], operands: bool) -> dict[str, Any]:
        """Return the numbers of engine, operation, source and operands of every row."""
        engines = self._engine_names()
        statements = self.statements
        columns = [rows[:, column] for column in (Recorded.pc, Recorded.kind, Recorded.engine)]
        least = [int(column.min(initial=0)) for column in columns]
        sizes = [int(column.max(initial=0)) - low + 1 for column, low in zip(columns, least, strict=True)]
        keys = np.ravel_multi_index([c - low for c, low in zip(columns, least, strict=True)], sizes)
        kinds, inverse = np.unique(keys, return_inverse=True)
        found = np.empty((len(kinds), 3), dtype=np.int64)
        for i, of_kind in enumerate(zip(*np.unravel_index(kinds, sizes), strict=True)):
            at, kind, engine = (int(x) + low for x, low in zip(of_kind, least, strict=True))
            statement = statements[at]
            name = NAMES.get(kind) or event_name(statement)
            where = engines[engine] if engine != NONE else PLACES.get(kind, "control")
            found[i] = (
                tables["engines"](where),
                tables["operations"](name),
                tables["sources"](source_of(statement.source) if statement is not None else ""),
            )
        texts = np.zeros(len(rows), dtype=np.int64)
        if operands:
            texts = self._operands(rows, tables["operands"])
        elif len(rows):
            tables["operands"]("")
        made = {name: found[inverse, i] for i, name in enumerate(("engine", "operation", "source"))}
        return {**made, "operand": texts}

    def _operands(self, rows: Any, names: _Names) -> Any:
        """Return the blocks each command touches, with their memories: ``local:x[0:4] -> common:y``."""
        numbers, touched = self._touched(rows)
        texts = [names(_operand_text(each, self.launched.table)) for each in touched]
        return np.array(texts, dtype=np.int64)[numbers]

    def _causes(self, rows: Any, order: Any, place: Any, unit: Any, at_launch: Any, launches: int) -> Any:
        """Return numbers of events instead of records; what nothing held up was released by its launch."""
        events = np.full(len(order) + 1, NONE, dtype=np.int64)
        events[order] = place
        self.events = events[:-1]
        cause = rows[:, Recorded.cause]
        number = np.minimum(np.searchsorted(self.numbers, cause), max(0, len(order) - 1))
        known = self.numbers[number] == cause if len(order) else np.zeros(0, dtype=bool)
        found = events[np.where(known, number, len(order))]
        return np.where(found == NONE, at_launch[unit], found) if launches else found

    def _flows(self, rows: Any, place: Any) -> Any:
        sent, received = self.messages(rows)
        pairs = [(place[sent[key]], place[row]) for key, row in received.items() if key in sent]
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)

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
