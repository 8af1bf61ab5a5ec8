"""The op log: JSON lines, one per event, readable without any tool.

The first line is a header with the schema and the tables of names; every other line is one event
with its names written out, so that ``grep`` and ``jq`` work on it.
"""

from __future__ import annotations

import json
from itertools import islice
from operator import index
from pathlib import Path
from typing import Any

from megatile.core.arguments import no_none
from megatile.core.files import whole_file
from megatile.trace.events import COLUMNS, NAME_TABLES, TABLE_OF, Trace, TraceError
from megatile.trace.files import make_trace, read_json, read_text, table_of_names

SCHEMA = "megatile-oplog-1"
_EVENTS_PER_WRITE = 50_000
"""Events that are formatted before they are written."""
_KEYS = {
    "start_ps": "t_start",
    "end_ps": "t_end",
    "unit": "unit",
    "engine": "engine",
    "operation": "op",
    "bytes": "bytes",
    "operand": "operands",
    "source": "source",
    "cause": "cause",
}
"""What the columns of a trace are called in a line, in its order."""
_ROW = "{" + ",".join(f'"{key}":%{"s" if name in TABLE_OF else "d"}' for name, key in _KEYS.items()) + "}"


@no_none
def write_oplog(trace: Trace, path: str | Path) -> Path:
    """Write one JSON line per event (times in ps); gzipped if the name ends in ``.gz``."""
    header = {
        "schema": SCHEMA,
        "machine": trace.machine,
        **{table: list(getattr(trace, table)) for table in NAME_TABLES},
        "flows": trace.flows.tolist(),
        "counters": [[c.name, c.time_ps.tolist(), c.value.tolist()] for c in trace.counters],
    }
    quoted = {name: [json.dumps(text) for text in getattr(trace, table)] for name, table in TABLE_OF.items()}
    with whole_file(path, TraceError) as out:
        out.write(json.dumps(header).encode() + b"\n")
        for start in range(0, len(trace), _EVENTS_PER_WRITE):
            part = {
                name: column[start : start + _EVENTS_PER_WRITE].tolist()
                for name, column in trace.columns.items()
            }
            part |= {name: [texts[i] for i in part[name]] for name, texts in quoted.items()}
            rows = [_ROW % row for row in zip(*(part[name] for name in _KEYS), strict=True)]
            out.write(("\n".join(rows) + "\n").encode())
    return Path(path)


@no_none
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
    for number, line in enumerate(islice(lines, 1, None), start=2):
        row = _json(path.name, number, line)
        try:
            for name, key in _KEYS.items():
                value = row[key]
                columns[name].append(numbers[TABLE_OF[name]][value] if name in TABLE_OF else index(value))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"{path.name}:{number}: malformed event ({error!r})") from None
    counters = header.get("counters", [])
    return make_trace(
        path.name, tables, columns, header.get("flows", []), counters, str(header.get("machine", ""))
    )


def _json(file: str, number: int, line: str) -> dict[str, Any]:
    row = read_json(line, f"{file}:{number}: not a JSON line")
    if not isinstance(row, dict):
        raise TraceError(f"{file}:{number}: a line of an op log is an object, not {type(row).__name__}")
    return row
