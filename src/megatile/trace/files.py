"""Open trace files from untrusted sources: gzip or plain, truncated or not text at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core import files
from megatile.trace.events import COLUMNS, Counter, Trace, TraceError

MAX_BYTES = 1 << 30
"""Refuse files that unpack to more than this: a small gzip file can hide terabytes."""


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of a plain or gzipped file, or a `TraceError` that says what is wrong with it."""
    return files.read_text(path, limit, TraceError, "write the trace again", unpack=True)


def read_json(text: str, what: str) -> Any:
    """Return a JSON value; ``NaN`` and ``Infinity``, which are not JSON, are refused like everything else."""
    try:
        return files.parse_json(text, parse_constant=_refuse)
    except ValueError as error:
        raise TraceError(f"{what} ({error})", advice="the file may be truncated; write it again") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def table_of_names(file: str, table: str, names: Any) -> tuple[str, ...]:
    """Return a table of names out of a file's header, checked."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TraceError(f"{file}: the header's '{table}' is not a list of names")
    return tuple(names)


def make_trace(
    file: str,
    tables: Mapping[str, tuple[str, ...]],
    columns: Mapping[str, list[int]],
    flows: Any,
    counters: Any,
    machine: str,
) -> Trace:
    """Return a Trace of what a file says; ``counters`` are (name, times, values)."""
    try:
        return Trace(
            **tables,
            columns={n: np.array(c, dtype=COLUMNS[n]) for n, c in columns.items()},
            flows=np.array(flows, dtype=np.int64).reshape(-1, 2),
            counters=tuple(Counter(str(n), np.asarray(t), np.asarray(v)) for n, t, v in counters),
            machine=machine,
        )
    except (OverflowError, ValueError, TypeError) as error:
        raise TraceError(f"{file}: {error}") from None
