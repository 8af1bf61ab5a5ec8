"""Gzipped Chrome/Perfetto JSON: one process per unit, threads for the lanes of its engines, arrows, counters.

A viewer drops events that overlap on one thread, so events that run at the same time lie in lanes
(`lanes.py`). It also rounds to nanoseconds, so times are written as whole ones, rounded down, which keeps
neighbours apart; the picoseconds stand in the arguments. The file has no
time stamp: the same Trace gives the same bytes. `read_perfetto` reads back what `write_perfetto`
wrote and treats the file as untrusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.files import whole_file
from megatile.trace.events import COLUMNS, NAME_TABLES, TABLE_OF, Trace, TraceError
from megatile.trace.files import make_trace, read_json, read_text, table_of_names
from megatile.trace.lanes import Row, rows_of

SCHEMA = "megatile-trace-2"
_NUMBERED = "megatile-trace-1"
"""The schema before: numbers of the tables where names stand now, and a thread per engine."""
_EVENTS_PER_WRITE = 50_000
"""Events that are formatted before they are written."""


@no_none
def write_perfetto(trace: Trace, path: str | Path) -> Path:
    """Write ``trace`` as Chrome JSON; gzipped if the name ends in ``.gz``. Returns the path."""
    header = {
        "schema": SCHEMA,
        "machine": trace.machine,
        **{table: list(getattr(trace, table)) for table in NAME_TABLES},
    }
    head = f'{{"displayTimeUnit":"ns","otherData":{json.dumps(header)},"traceEvents":[\n'
    with whole_file(path, TraceError) as out:
        for part in filter(None, _parts(trace)):
            out.write((head + ",\n".join(part)).encode())
            head = ",\n"
        out.write((("" if head == ",\n" else head) + "\n]}\n").encode())
    return Path(path)


def _parts(trace: Trace) -> Iterator[list[str]]:
    rows, row = rows_of(trace)
    thread = row + 1
    yield _tracks(trace, rows)
    for start in range(0, len(trace), _EVENTS_PER_WRITE):
        yield _events(trace, thread, start, min(start + _EVENTS_PER_WRITE, len(trace)))
    yield from _arrows(trace, thread)
    yield from _counters(trace)


def _tracks(trace: Trace, rows: list[Row]) -> list[str]:
    """Return names and order of the tracks: units in order (hierarchical names), lanes of engines under
    each."""
    result = []
    for unit in dict.fromkeys(row.unit for row in rows):
        result.append(_meta("process_name", unit + 1, None, {"name": trace.units[unit]}))
        result.append(_meta("process_sort_index", unit + 1, None, {"sort_index": unit}))
    for number, row in enumerate(rows, start=1):
        result.append(_meta("thread_name", row.unit + 1, number, {"name": row.name}))
        result.append(_meta("thread_sort_index", row.unit + 1, number, {"sort_index": number}))
    return result


def _meta(name: str, pid: int, tid: int | None, args: dict[str, Any]) -> str:
    row: dict[str, Any] = {"ph": "M", "name": name, "pid": pid, "args": args}
    if tid is not None:
        row["tid"] = tid
    return json.dumps(row)


def _micro(ps: np.ndarray) -> list[tuple[int, int]]:
    whole, rest = np.divmod(ps, 1_000_000)
    return list(zip(whole.tolist(), rest.tolist(), strict=True))


_ROW = '%s"ts":%d.%03d,"dur":%d.%03d,"args":{"start_ps":%d,"end_ps":%d,"cause":%d,%s%s'


def _events(trace: Trace, thread: np.ndarray, start: int, stop: int) -> list[str]:
    """The hot loop of a large trace: what repeats (names, sizes, places) is formatted once per block."""
    part = {name: column[start:stop] for name, column in trace.columns.items()}
    kinds, where = _repeating(
        [part[n] for n in ("operation", "unit", "engine", "bytes", "source", "operand")]
        + [thread[start:stop]]
    )
    heads, tails = [], []
    for operation, unit, engine, size, source, operand, tid in zip(*kinds, strict=True):
        name = json.dumps(trace.operations[operation])
        heads.append(f'{{"ph":"X","name":{name},"pid":{unit + 1},"tid":{tid},')
        named = {"engine": trace.engines[engine], "source": trace.sources[source]}
        named |= {"operand": trace.operands[operand]}
        tails.append(f'"bytes":{size},{json.dumps(named)[1:]}}}')
    released, by = _released_by(trace, part["cause"])
    begin, end = part["start_ps"] // 1000, part["end_ps"] // 1000
    rows = zip(
        [heads[i] for i in where],
        *(number.tolist() for time in (begin, end - begin) for number in np.divmod(time, 1000)),
        *(part[name].tolist() for name in ("start_ps", "end_ps", "cause")),
        [released[i] for i in by],
        [tails[i] for i in where],
        strict=True,
    )
    return [_ROW % row for row in rows]


def _released_by(trace: Trace, cause: np.ndarray) -> tuple[list[str], list[int]]:
    """Return what released an event, in words."""
    columns = [np.append(trace.columns[name], -1)[cause] for name in ("unit", "engine", "operation")]
    kinds, where = _repeating(columns)
    texts = [
        f'"released by":{json.dumps(f"{trace.units[u]} {trace.engines[e]} {trace.operations[o]}")},'
        if u >= 0
        else ""
        for u, e, o in zip(*kinds, strict=True)
    ]
    return texts, where


def _repeating(columns: list[np.ndarray]) -> tuple[list[list[int]], list[int]]:
    """Return the distinct rows of some columns, column by column, and which of them each row is."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + number, return_inverse=True)[1]
    first = np.unique(key, return_index=True)[1]
    return [column[first].tolist() for column in columns], key.tolist()


_ARROW = '{"ph":"%s","name":"send","cat":"flow","id":%d,"pid":%d,"tid":%d,"ts":%d.%06d%s}'


def _arrows(trace: Trace, thread: np.ndarray) -> Iterator[list[str]]:
    """Yield one arrow per message, from the middle of the send to the last nanosecond of the receive."""
    unit = trace.columns["unit"] + 1
    middle = (trace.columns["start_ps"] + trace.columns["end_ps"]) // 2
    end = np.maximum(trace.columns["start_ps"], trace.columns["end_ps"] - 1000)
    for begin in range(0, len(trace.flows), _EVENTS_PER_WRITE):
        block = trace.flows[begin : begin + _EVENTS_PER_WRITE]
        rows = []
        for phase, event, time, tail in (
            ("s", block[:, 0], middle, ""),
            ("f", block[:, 1], end, ',"bp":"e"'),
        ):
            columns = (unit[event].tolist(), thread[event].tolist(), _micro(time[event]))
            for i, (p, t, (whole, rest)) in enumerate(zip(*columns, strict=True)):
                rows.append(_ARROW % (phase, begin + i, p, t, whole, rest, tail))
        # The event numbers are what the reader needs; viewers ignore the extra record.
        rows.append(_meta("megatile_flows", 0, None, {"pairs": block.tolist()}))
        yield rows


def _counters(trace: Trace) -> Iterator[list[str]]:
    for counter in trace.counters:
        name = json.dumps(counter.name)
        times, values = _micro(counter.time_ps), counter.value.tolist()
        for start in range(0, max(len(times), 1), _EVENTS_PER_WRITE):
            block = zip(
                times[start : start + _EVENTS_PER_WRITE],
                values[start : start + _EVENTS_PER_WRITE],
                strict=True,
            )
            yield [
                f'{{"ph":"C","name":{name},"pid":0,"ts":{t[0]}.{t[1]:06d},"args":{{"value":{v!r}}}}}'
                for t, v in block
            ]


@no_none
def read_perfetto(path: str | Path) -> Trace:
    """Read a file made by `write_perfetto`; `TraceError` says what is wrong with any other."""
    path = Path(path)
    document = read_json(read_text(path), f"{path.name} is not valid JSON")
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{path.name} is not a Chrome trace: no list 'traceEvents'")
    header = document.get("otherData")
    if not isinstance(header, dict) or header.get("schema") not in (SCHEMA, _NUMBERED):
        raise TraceError(
            f"{path.name} is a Chrome trace of another program", advice=f"only '{SCHEMA}' files are read"
        )
    return _rebuild(path.name, header, document["traceEvents"])


def _rebuild(file: str, header: dict[str, Any], rows: list[Any]) -> Trace:
    tables = {t: table_of_names(file, t, header.get(t)) for t in NAME_TABLES}
    reader = _Reader(tables, numbered=header["schema"] == _NUMBERED)
    for number, row in enumerate(rows):
        try:
            reader.take(row)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise TraceError(f"{file}: record {number} of 'traceEvents' is malformed ({error!r})") from None
    counters = [(name, *both) for name, both in reader.counters.items()]
    return make_trace(file, tables, reader.columns, reader.flows, counters, str(header.get("machine", "")))


class _Reader:
    """Records of a file, one after the other, into columns."""

    def __init__(self, tables: dict[str, tuple[str, ...]], numbered: bool) -> None:
        self.numbers = {table: {name: i for i, name in enumerate(names)} for table, names in tables.items()}
        self.numbered = numbered
        self.columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
        self.flows: list[list[int]] = []
        self.counters: dict[str, tuple[list[int], list[float]]] = {}

    def take(self, row: Any) -> None:
        phase = row["ph"]
        if phase == "X":
            self.event(row, row["args"])
        elif phase == "M" and row["name"] == "megatile_flows":
            self.flows.extend([index(a), index(b)] for a, b in row["args"]["pairs"])
        elif phase == "C":
            times, values = self.counters.setdefault(str(row["name"]), ([], []))
            times.append(_ps(row["ts"]))
            values.append(float(row["args"]["value"]))
        elif phase not in ("M", "s", "f"):
            raise ValueError(f"unknown phase {phase!r}")

    def event(self, row: Any, args: Any) -> None:
        if self.numbered:
            start = _ps(row["ts"])
            args = {**args, "start_ps": start, "end_ps": start + _ps(row["dur"])}
            names = {"engine": index(row["tid"]) - 1, "operand": args["operand"], "source": args["source"]}
        else:
            names = {
                name: self.numbers[TABLE_OF[name]][args[name]] for name in ("engine", "operand", "source")
            }
        values = names | {
            "unit": row["pid"] - 1,
            "operation": self.numbers["operations"][row["name"]],
            **{name: args[name] for name in ("start_ps", "end_ps", "bytes", "cause")},
        }
        for name, column in self.columns.items():
            column.append(index(values[name]))


def _ps(micro: float) -> int:
    if isinstance(micro, bool) or not isinstance(micro, (int, float)) or not math.isfinite(micro):
        raise ValueError(f"time {micro!r}")
    return round(micro * 1e6)
