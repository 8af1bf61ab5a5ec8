"""Where the time went, operation by operation."""

from __future__ import annotations

import numpy as np

from megatile.core.quantities import format_bytes, format_time
from megatile.trace import Trace
from megatile.trace.tables import text_table


def summary(trace: Trace) -> str:
    """A table of operations: count, time, share of the whole, bytes moved."""
    total = trace.end_ps
    rows = []
    pairs = np.stack([trace.columns["engine"], trace.columns["operation"]], axis=1)
    for engine, operation in np.unique(pairs, axis=0).tolist() if len(trace) else []:
        mask = (pairs[:, 0] == engine) & (pairs[:, 1] == operation)
        spent = int((trace.columns["end_ps"] - trace.columns["start_ps"])[mask].sum())
        share = spent / max(1, total * len(trace.units))
        moved = int(trace.columns["bytes"][mask].sum())
        rows.append(
            (
                trace.engines[engine],
                trace.operations[operation],
                int(mask.sum()),
                format_time(spent),
                f"{share:.1%}",
                format_bytes(moved),
            )
        )
    table = text_table(("engine", "operation", "events", "time", "of all units", "bytes"), rows)
    machine = f" on {trace.machine}" if trace.machine else ""
    return f"{format_time(total)}{machine}, {len(trace.units)} units, {len(trace)} events\n{table}"
