"""The op log: JSON lines, one per event, readable without any tool.

The first line is a header with the schema and the tables of names; every other line is one event
with its names written out, so that ``grep`` and ``jq`` work on it.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import IO, Any

import numpy as np

from megatile.trace.events import COLUMNS, NAME_TABLES, TABLE_OF, Counter, Trace, TraceError
from megatile.trace.files import read_text, table_of_names

SCHEMA = "megatile-oplog-1"
_BLOCK = 50_000
_ROW = (
    '{"t_start":%d,"t_end":%d,"unit":%s,"engine":%s,"op":%s,"bytes":%d,"operands":%s,"source":%s,"cause":%d}'
)
_KEYS = {
    "unit": "unit",
    "engine": "engine",
    "operation": "op",
    "operand": "operands",
    "source": "source",
    "start_ps": "t_start",
    "end_ps": "t_end",
    "bytes": "bytes",
    "cause": "cause",
}


def write_oplog(trace: Trace, path: str | Path) -> Path:
    """Write one JSON line per event (times in ps); gzipped if the name ends in ``.gz``."""
    path = Path(path)
    with path.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=1, mtime=0) as packed:
                _write(trace, packed)
        else:
            _write(trace, raw)
    return path


def _write(trace: Trace, out: IO[bytes] | gzip.GzipFile) -> None:
    header = {
        "schema": SCHEMA,
        "machine": trace.machine,
        **{table: list(getattr(trace, table)) for table in NAME_TABLES},
        "flows": trace.flows.tolist(),
        "counters": [[c.name, c.time_ps.tolist(), c.value.tolist()] for c in trace.counters],
    }
    out.write(json.dumps(header).encode() + b"\n")
    quoted = {name: [json.dumps(text) for text in getattr(trace, table)] for name, table in TABLE_OF.items()}
    for start in range(0, len(trace), _BLOCK):
        part = {name: column[start : start + _BLOCK].tolist() for name, column in trace.columns.items()}
        for name, texts in quoted.items():
            part[name] = [texts[i] for i in part[name]]
        order = ("start_ps", "end_ps", "unit", "engine", "operation", "bytes", "operand", "source", "cause")
        rows = [_ROW % row for row in zip(*(part[name] for name in order), strict=True)]
        out.write(("\n".join(rows) + "\n").encode())


def read_oplog(path: str | Path) -> Trace:
    """Read a file made by `write_oplog`; errors name the line that is wrong."""
    path = Path(path)
    lines = read_text(path).splitlines()
    header = _json(path.name, 1, lines[0] if lines else "")
    if header.get("schema") != SCHEMA:
        raise TraceError(f"{path.name} is not an op log of schema '{SCHEMA}'")
    tables = {t: table_of_names(path.name, t, header.get(t)) for t in NAME_TABLES}
    numbers = {t: {name: i for i, name in enumerate(names)} for t, names in tables.items()}
    columns: dict[str, list[int]] = {name: [] for name in COLUMNS}
    for number, line in enumerate(lines[1:], start=2):
        row = _json(path.name, number, line)
        try:
            for name, key in _KEYS.items():
                columns[name].append(numbers[TABLE_OF[name]][row[key]] if name in TABLE_OF else int(row[key]))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path.name}:{number}: malformed event ({error!r})") from None
    try:
        return Trace(
            **tables,
            columns={n: np.array(c, dtype=COLUMNS[n]) for n, c in columns.items()},
            flows=np.array(header.get("flows", []), dtype=np.int64).reshape(-1, 2),
            counters=tuple(
                Counter(str(n), np.array(t, dtype=np.int64), np.array(v, dtype=np.float64))
                for n, t, v in header.get("counters", [])
            ),
            machine=str(header.get("machine", "")),
        )
    except (OverflowError, ValueError, TypeError) as error:
        raise error if isinstance(error, TraceError) else TraceError(f"{path.name}: {error}") from None


def _json(file: str, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(
            f"{file}:{number}: not a JSON line ({error})", advice="the file may be truncated"
        ) from None
    if not isinstance(row, dict):
        raise TraceError(f"{file}:{number}: a line of an op log is an object, not {type(row).__name__}")
    return row
