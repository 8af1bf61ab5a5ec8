"""Where the time went, operation by operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.operations import spoken_operation
from megatile.core.quantities import format_bytes, format_time
from megatile.core.tables import text_table
from megatile.trace import Trace, critical_groups


@no_none
def summary(trace: Trace) -> str:
    """Return a table of operations: count, time, share of the whole, bytes moved."""
    rows = [
        (engine, spoken_operation(operation), count, format_time(spent), f"{share:.1%}", format_bytes(moved))
        for engine, operation, count, spent, share, moved in _operations(trace)
    ]
    table = text_table(("engine", "operation", "events", "time", "of all units", "bytes"), rows)
    machine = f" on {trace.machine}" if trace.machine else ""
    return f"{format_time(trace.end_ps)}{machine}, {len(trace.units)} units, {len(trace)} events\n{table}"


@no_none
def summary_json(trace: Trace, limit: int = 10) -> dict[str, Any]:
    """Return the same and the critical path as plain data, times in picoseconds."""
    names = ("engine", "operation", "events", "time_ps", "share", "bytes")
    steps = ("operation", "engine", "source", "steps", "time_ps", "share")
    return {
        "machine": trace.machine,
        "time_ps": trace.end_ps,
        "units": len(trace.units),
        "events": len(trace),
        "operations": [dict(zip(names, row, strict=True)) for row in _operations(trace)],
        "critical_path": [dict(zip(steps, row, strict=True)) for row in critical_groups(trace)[:limit]],
    }


def _operations(trace: Trace) -> list[tuple[str, str, int, int, float, int]]:
    """(engine, operation, events, picoseconds, share of all units' time, bytes)."""
    engine, operation = (trace.columns[name].astype(np.int64) for name in ("engine", "operation"))
    keys, kind = np.unique(engine * max(1, len(trace.operations)) + operation, return_inverse=True)
    spent, moved = np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    np.add.at(spent, kind, trace.columns["end_ps"] - trace.columns["start_ps"])
    np.add.at(moved, kind, trace.columns["bytes"])
    whole = max(1, trace.end_ps * len(trace.units))
    counts = np.bincount(kind, minlength=len(keys)).tolist()
    return [
        (*_names(trace, key), count, time, time / whole, size)
        for key, count, time, size in zip(keys.tolist(), counts, spent.tolist(), moved.tolist(), strict=True)
    ]


def _names(trace: Trace, key: int) -> tuple[str, str]:
    engine, operation = divmod(key, max(1, len(trace.operations)))
    return trace.engines[engine], trace.operations[operation]
