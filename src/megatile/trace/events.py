"""The event schema and its columnar store.

A Trace holds one row per event in NumPy columns; names (units, engines, operations, operands, source
lines) are stored once and referred to by number. A million events are about 50 MB and are made,
checked and compared without a Python object per event.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.errors import MegatileError

NAME_TABLES = ("units", "engines", "operations", "operands", "sources")
"""The tables of names, in the order in which `Trace` takes them."""

COLUMNS: dict[str, type] = {
    "unit": np.int32,
    "engine": np.int32,
    "operation": np.int32,
    "operand": np.int32,
    "source": np.int32,
    "start_ps": np.int64,
    "end_ps": np.int64,
    "bytes": np.int64,
    "cause": np.int64,
}
"""Every column of a Trace and its type, those with names of `NAME_TABLES` first; ``cause`` is the number of
the event that released it, or -1."""

TABLE_OF = dict(zip(COLUMNS, NAME_TABLES, strict=False))


class TraceError(MegatileError, ValueError):
    """A trace that contradicts itself, or a trace file that cannot be read."""


@dataclass(frozen=True)
class Event:
    """One row of a Trace with its names written out."""

    index: int
    unit: str
    engine: str
    operation: str
    start_ps: int
    end_ps: int
    bytes: int = 0
    cause: int = -1
    source: str = ""
    operand: str = ""

    @property
    def duration_ps(self) -> int:
        return self.end_ps - self.start_ps


@dataclass(frozen=True, eq=False)
class Counter:
    """A value over time: the depth of a queue, the use of a link. Steps at ``time_ps``."""

    name: str
    time_ps: np.ndarray
    value: np.ndarray

    def __post_init__(self) -> None:
        if not (np.abs(np.asarray(self.time_ps, dtype=np.float64)) < 2.0**63).all():
            raise TraceError(
                f"counter '{self.name}' holds a time that is not a number of picoseconds below 2^63"
            )
        times, values = np.asarray(self.time_ps, dtype=np.int64), np.asarray(self.value, dtype=np.float64)
        if times.shape != values.shape or times.ndim != 1:
            raise TraceError(f"counter '{self.name}' needs one value per time")
        if not np.isfinite(values).all():
            raise TraceError(f"counter '{self.name}' holds a value that is not a number")
        object.__setattr__(self, "time_ps", times)
        object.__setattr__(self, "value", values)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Counter)
            and self.name == other.name
            and np.array_equal(self.time_ps, other.time_ps)
            and np.array_equal(self.value, other.value)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What happened when and why.

    ``columns`` maps the names of `COLUMNS` to arrays of one length; ``flows`` is an array of pairs
    (event that sent, event that received); ``machine`` is the name of the HDA. Frozen: make one with
    `TraceBuilder` or from arrays, and it checks itself.
    """

    units: tuple[str, ...]
    engines: tuple[str, ...]
    operations: tuple[str, ...]
    operands: tuple[str, ...]
    sources: tuple[str, ...]
    columns: Mapping[str, np.ndarray]
    flows: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    counters: tuple[Counter, ...] = ()
    machine: str = ""

    def __repr__(self) -> str:
        return f"Trace({self.machine}: {len(self)} events of {len(self.units)} units)"

    def __post_init__(self) -> None:
        if set(self.columns) != set(COLUMNS):
            wrong = sorted(set(self.columns) ^ set(COLUMNS))
            raise TraceError(f"trace columns missing or unknown: {', '.join(wrong)}")
        typed: dict[str, np.ndarray] = {
            name: np.ascontiguousarray(self.columns[name], dtype=kind) for name, kind in COLUMNS.items()
        }
        object.__setattr__(self, "columns", typed)
        object.__setattr__(self, "flows", np.asarray(self.flows, dtype=np.int64).reshape(-1, 2))
        self._check()

    def _check(self) -> None:
        count = len(self)
        for name, column in self.columns.items():
            if len(column) != count:
                raise TraceError(f"trace column '{name}' has {len(column)} rows, not {count}")
        for name, table in TABLE_OF.items():
            _in_range(f"column '{name}'", self.columns[name], 0, len(getattr(self, table)))
        _in_range("column 'cause'", self.columns["cause"], -1, count)
        _in_range("flows", self.flows.ravel(), 0, count)
        backward = self.columns["end_ps"] < self.columns["start_ps"]
        if backward.any():
            row = int(np.argmax(backward))
            raise TraceError(f"event {row} ends before it starts")

    def __len__(self) -> int:
        return len(self.columns["start_ps"])

    def __getitem__(self, index: int) -> Event:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"event {index} of {count}")
        index %= count
        values: dict[str, Any] = {name: int(column[index]) for name, column in self.columns.items()}
        values |= {name: getattr(self, table)[values[name]] for name, table in TABLE_OF.items()}
        return Event(index, **values)

    def __iter__(self) -> Iterator[Event]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return (
            self.machine == other.machine
            and all(getattr(self, t) == getattr(other, t) for t in NAME_TABLES)
            and all(np.array_equal(self.columns[c], other.columns[c]) for c in COLUMNS)
            and np.array_equal(self.flows, other.flows)
            and self.counters == other.counters
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def end_ps(self) -> int:
        """The time at which the last event ends (0 for an empty trace)."""
        return int(self.columns["end_ps"].max()) if len(self) else 0

    def select(self, **names: str) -> np.ndarray:
        """Return numbers of the events whose named columns equal the given names.

        >>> # trace.select(engine="dma", operation="send")
        """
        mask = np.ones(len(self), dtype=bool)
        for column, name in names.items():
            if column not in TABLE_OF:
                raise TraceError(f"events cannot be selected by '{column}'")
            table = getattr(self, TABLE_OF[column])
            number = table.index(name) if name in table else -1
            mask &= self.columns[column] == number
        return np.flatnonzero(mask)


def _in_range(what: str, values: np.ndarray, low: int, high: int) -> None:
    if len(values) and (int(values.min()) < low or int(values.max()) >= high):
        raise TraceError(f"trace {what} holds a number outside {low}..{high - 1}")


class TraceBuilder:
    """Collects events and makes a Trace of them; names become numbers on the way."""

    def __init__(self, machine: str = "") -> None:
        self.machine = machine
        self._tables: dict[str, dict[str, int]] = {t: {} for t in NAME_TABLES}
        self._columns = {n: array("q" if t is np.int64 else "i") for n, t in COLUMNS.items()}
        self._flows = array("q")
        self._counters: list[Counter] = []

    def __len__(self) -> int:
        return len(self._columns["start_ps"])

    def name(self, table: str, text: str) -> int:
        """Return the number of ``text`` in a table of names; a new one if it is not there."""
        names = self._tables[table]
        return names.setdefault(text, len(names))

    def add(
        self,
        *,
        unit: str,
        engine: str,
        operation: str,
        start_ps: int,
        end_ps: int,
        bytes: int = 0,
        cause: int = -1,
        source: str = "",
        operand: str = "",
    ) -> int:
        """Append one event and return its number."""
        number = len(self)
        columns = self._columns
        columns["unit"].append(self.name("units", unit))
        columns["engine"].append(self.name("engines", engine))
        columns["operation"].append(self.name("operations", operation))
        columns["operand"].append(self.name("operands", operand))
        columns["source"].append(self.name("sources", source))
        columns["start_ps"].append(start_ps)
        columns["end_ps"].append(end_ps)
        columns["bytes"].append(bytes)
        columns["cause"].append(cause)
        return number

    def flow(self, sender: int, receiver: int) -> None:
        """Add an arrow from the event that sent to the event that received."""
        self._flows.extend((sender, receiver))

    def counter(self, name: str, time_ps: Sequence[int], value: Sequence[float]) -> None:
        self._counters.append(Counter(name, np.asarray(time_ps), np.asarray(value)))

    def build(self) -> Trace:
        return Trace(
            **{table: tuple(names) for table, names in self._tables.items()},
            columns={n: np.array(c, dtype=COLUMNS[n]) for n, c in self._columns.items()},
            flows=np.array(self._flows, dtype=np.int64).reshape(-1, 2),
            counters=tuple(self._counters),
            machine=self.machine,
        )


@no_none
def join_traces(parts: Sequence[tuple[int, Trace]], machine: str = "") -> Trace:
    """Return the traces as one, each shifted by its picoseconds; what begins a part is released by the last
    that ended before.

    >>> # join_traces([(0, first), (first.end_ps, second)])
    """
    tables: dict[str, dict[str, int]] = {table: {} for table in NAME_TABLES}
    columns: dict[str, list[np.ndarray]] = {name: [np.zeros(0, dtype=kind)] for name, kind in COLUMNS.items()}
    flows, counters = [np.zeros((0, 2), dtype=np.int64)], []
    count = 0
    ends: list[tuple[int, int]] = []
    for shift, trace in parts:
        last = max((end for end in ends if end[0] <= shift), default=(0, -1))[1]
        for name, column in trace.columns.items():
            columns[name].append(_renumbered(name, column, trace, tables, shift, count, last))
        flows.append(trace.flows + count)
        counters += [Counter(c.name, c.time_ps + shift, c.value) for c in trace.counters]
        if len(trace):
            event = int(np.argmax(trace.columns["end_ps"]))
            ends.append((shift + int(trace.columns["end_ps"][event]), count + event))
        count += len(trace)
    return Trace(
        **{table: tuple(names) for table, names in tables.items()},
        columns={name: np.concatenate(parts_) for name, parts_ in columns.items()},
        flows=np.concatenate(flows),
        counters=tuple(counters),
        machine=machine,
    )


def _renumbered(
    name: str,
    column: np.ndarray,
    trace: Trace,
    tables: dict[str, dict[str, int]],
    shift: int,
    count: int,
    last: int,
) -> np.ndarray:
    if name in TABLE_OF:
        names = tables[TABLE_OF[name]]
        new = [names.setdefault(text, len(names)) for text in getattr(trace, TABLE_OF[name])]
        return np.asarray(new, dtype=column.dtype)[column] if len(column) else column
    if name in ("start_ps", "end_ps"):
        return column + shift
    if name == "cause":
        return np.where(column < 0, last, column + count)
    return column
