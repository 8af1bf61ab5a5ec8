"""Gzipped Chrome/Perfetto JSON: one process per unit, one thread per engine, arrows and counters.

Times are microseconds with six decimals, so every picosecond survives. The file is written without a
time stamp: the same Trace gives the same bytes. `read_perfetto` reads back what `write_perfetto`
wrote and treats the file as untrusted.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from megatile.trace.events import COLUMNS, NAME_TABLES, Counter, Trace, TraceError
from megatile.trace.files import read_text, table_of_names

SCHEMA = "megatile-trace-1"
_BLOCK = 50_000


def write_perfetto(trace: Trace, path: str | Path) -> Path:
    """Write ``trace`` as Chrome JSON; gzipped if the name ends in ``.gz``. Returns the path."""
    path = Path(path)
    with path.open("wb") as raw:
        if path.suffix == ".gz":
            # Level 1 is five times faster than the default and keeps a million events under 5 s.
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed:
                _write(trace, cast(BinaryIO, packed))
        else:
            _write(trace, raw)
    return path


def _write(trace: Trace, out: BinaryIO) -> None:
    header = {
        "schema": SCHEMA,
        "machine": trace.machine,
        **{table: list(getattr(trace, table)) for table in NAME_TABLES},
    }
    out.write(b'{"displayTimeUnit":"ns","otherData":' + json.dumps(header).encode() + b',"traceEvents":[\n')
    first = True
    for part in _parts(trace):
        if not part:
            continue
        text = ",\n".join(part)
        out.write((text if first else ",\n" + text).encode())
        first = False
    out.write(b"\n]}\n")


def _parts(trace: Trace) -> Iterator[list[str]]:
    yield _tracks(trace)
    for start in range(0, len(trace), _BLOCK):
        yield _events(trace, start, min(start + _BLOCK, len(trace)))
    yield from _arrows(trace)
    yield from _counters(trace)


def _tracks(trace: Trace) -> list[str]:
    """Names and order of the tracks: units in order (hierarchical names), engines under each."""
    rows = []
    pairs = np.unique(np.stack([trace.columns["unit"], trace.columns["engine"]], axis=1), axis=0)
    for unit in np.unique(pairs[:, 0]).tolist() if len(trace) else []:
        rows.append(_meta("process_name", unit + 1, None, {"name": trace.units[unit]}))
        rows.append(_meta("process_sort_index", unit + 1, None, {"sort_index": unit}))
    for unit, engine in pairs.tolist() if len(trace) else []:
        rows.append(_meta("thread_name", unit + 1, engine + 1, {"name": trace.engines[engine]}))
    return rows


def _meta(name: str, pid: int, tid: int | None, args: dict[str, Any]) -> str:
    row: dict[str, Any] = {"ph": "M", "name": name, "pid": pid, "args": args}
    if tid is not None:
        row["tid"] = tid
    return json.dumps(row)


def _micro(ps: np.ndarray) -> list[tuple[int, int]]:
    whole, rest = np.divmod(ps, 1_000_000)
    return list(zip(whole.tolist(), rest.tolist(), strict=True))


_TIME = "%d.%06d"
_ROW = '%s"ts":%d.%06d,"dur":%s,"args":{"cause":%d,%s'


def _events(trace: Trace, start: int, stop: int) -> list[str]:
    """The hot loop of a large trace: what repeats (names, sizes, places) is formatted once per block."""
    part = {name: column[start:stop] for name, column in trace.columns.items()}
    kinds, where = _repeating(
        [part[n] for n in ("operation", "unit", "engine", "bytes", "source", "operand")]
    )
    heads, tails = [], []
    for operation, unit, engine, size, source, operand in zip(*kinds, strict=True):
        name = json.dumps(trace.operations[operation])
        heads.append(f'{{"ph":"X","name":{name},"pid":{unit + 1},"tid":{engine + 1},')
        tails.append(f'"bytes":{size},"source":{source},"operand":{operand}}}}}')
    ts, ts_rest = np.divmod(part["start_ps"], 1_000_000)
    lengths, which = np.unique(part["end_ps"] - part["start_ps"], return_inverse=True)
    texts = [_TIME % pair for pair in _micro(lengths)]
    rows = zip(
        [heads[i] for i in where],
        ts.tolist(),
        ts_rest.tolist(),
        [texts[i] for i in which.tolist()],
        part["cause"].tolist(),
        [tails[i] for i in where],
        strict=True,
    )
    return [_ROW % row for row in rows]


def _repeating(columns: list[np.ndarray]) -> tuple[list[list[int]], list[int]]:
    """The distinct rows of some columns, column by column, and which of them each row is."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, number = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + number, return_inverse=True)[1]
    first = np.unique(key, return_index=True)[1]
    return [column[first].tolist() for column in columns], key.tolist()


_ARROW = '{"ph":"%s","name":"send","cat":"flow","id":%d,"pid":%d,"tid":%d,"ts":%d.%06d%s}'


def _arrows(trace: Trace) -> Iterator[list[str]]:
    """One arrow per message, from the middle of the send to the end of the receive."""
    unit, engine = trace.columns["unit"] + 1, trace.columns["engine"] + 1
    middle = (trace.columns["start_ps"] + trace.columns["end_ps"]) // 2
    end = trace.columns["end_ps"]
    for begin in range(0, len(trace.flows), _BLOCK):
        block = trace.flows[begin : begin + _BLOCK]
        rows = []
        for phase, event, time, tail in (
            ("s", block[:, 0], middle, ""),
            ("f", block[:, 1], end, ',"bp":"e"'),
        ):
            columns = (unit[event].tolist(), engine[event].tolist(), _micro(time[event]))
            for i, (p, t, (whole, rest)) in enumerate(zip(*columns, strict=True)):
                rows.append(_ARROW % (phase, begin + i, p, t, whole, rest, tail))
        # The event numbers are what the reader needs; viewers ignore the extra record.
        rows.append(_meta("megatile_flows", 0, None, {"pairs": block.tolist()}))
        yield rows


def _counters(trace: Trace) -> Iterator[list[str]]:
    for counter in trace.counters:
        name = json.dumps(counter.name)
        times, values = _micro(counter.time_ps), counter.value.tolist()
        for start in range(0, max(len(times), 1), _BLOCK):
            block = zip(times[start : start + _BLOCK], values[start : start + _BLOCK], strict=True)
            yield [
                f'{{"ph":"C","name":{name},"pid":0,"ts":{t[0]}.{t[1]:06d},"args":{{"value":{v!r}}}}}'
                for t, v in block
            ]


def read_perfetto(path: str | Path) -> Trace:
    """Read a file made by `write_perfetto`; `TraceError` says what is wrong with any other."""
    path = Path(path)
    text = read_text(path)
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(
            f"{path.name} is not valid JSON: {error}", advice="the file may be truncated; write it again"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{path.name} is not a Chrome trace: no list 'traceEvents'")
    header = document.get("otherData")
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        raise TraceError(
            f"{path.name} is a Chrome trace of another program", advice=f"only '{SCHEMA}' files are read"
        )
    return _rebuild(path.name, header, document["traceEvents"])


def _rebuild(file: str, header: dict[str, Any], rows: list[Any]) -> Trace:
    tables = {t: table_of_names(file, t, header.get(t)) for t in NAME_TABLES}
    operations = {name: i for i, name in enumerate(tables["operations"])}
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    flows: list[list[int]] = []
    counters: dict[str, tuple[list[int], list[float]]] = {}
    for number, row in enumerate(rows):
        try:
            _take(row, operations, columns, flows, counters)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise TraceError(f"{file}: record {number} of 'traceEvents' is malformed ({error!r})") from None
    try:
        return Trace(
            **tables,
            columns={n: np.array(c, dtype=COLUMNS[n]) for n, c in columns.items()},
            flows=np.array(flows, dtype=np.int64).reshape(-1, 2),
            counters=tuple(
                Counter(n, np.array(t, dtype=np.int64), np.array(v, dtype=np.float64))
                for n, (t, v) in counters.items()
            ),
            machine=str(header.get("machine", "")),
        )
    except (OverflowError, ValueError) as error:
        raise TraceError(f"{file}: {error}") from None


def _take(
    row: Any,
    operations: dict[str, int],
    columns: dict[str, list[int]],
    flows: list[list[int]],
    counters: dict[str, tuple[list[int], list[float]]],
) -> None:
    phase = row["ph"]
    if phase == "X":
        args = row["args"]
        start = _ps(row["ts"])
        values = (row["pid"] - 1, row["tid"] - 1, operations[row["name"]], args["operand"], args["source"])
        for name, value in zip(COLUMNS, (*values, start, start + _ps(row["dur"])), strict=False):
            columns[name].append(int(value))
        columns["bytes"].append(int(args["bytes"]))
        columns["cause"].append(int(args["cause"]))
    elif phase == "M" and row["name"] == "megatile_flows":
        flows.extend([int(a), int(b)] for a, b in row["args"]["pairs"])
    elif phase == "C":
        times, values_ = counters.setdefault(str(row["name"]), ([], []))
        times.append(_ps(row["ts"]))
        values_.append(float(row["args"]["value"]))
    elif phase not in ("M", "s", "f"):
        raise ValueError(f"unknown phase {phase!r}")


def _ps(micro: float) -> int:
    if not isinstance(micro, (int, float)) or not math.isfinite(micro):
        raise ValueError(f"time {micro!r}")
    return round(micro * 1e6)
