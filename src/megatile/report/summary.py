"""Where the time went, engine by engine."""

from __future__ import annotations

import numpy as np

from megatile.trace.tables import format_bytes, format_ps, text_table
from megatile.trace import Trace

COMMUNICATION = ("dma", "channel", "control")
"""Engines that move data or wait for it; the others compute."""


def busy_ps(trace: Trace) -> dict[str, int]:
    """Time in which each engine works, added up over all units (waiting events are not work)."""
    length = trace.columns["end_ps"] - trace.columns["start_ps"]
    engine = trace.columns["engine"]
    return {
        name: int(length[engine == number].sum())
        for number, name in enumerate(trace.engines)
        if name not in ("channel", "control")
    }


def exposed_ps(trace: Trace) -> dict[str, int]:
    """Per unit: time in which it communicates or waits and none of its compute engines works."""
    result = {}
    talking = np.isin(
        trace.columns["engine"], [i for i, name in enumerate(trace.engines) if _communicates(name)]
    )
    for number, unit in enumerate(trace.units):
        mine = trace.columns["unit"] == number
        both = _spans(trace, mine)
        compute = _spans(trace, mine & ~talking)
        result[unit] = _covered(both) - _covered(compute)
    return result


def _communicates(engine: str) -> bool:
    return engine.rstrip("0123456789").split(".")[0] in COMMUNICATION


def _spans(trace: Trace, mask: np.ndarray) -> np.ndarray:
    spans = np.stack([trace.columns["start_ps"][mask], trace.columns["end_ps"][mask]], axis=1)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _covered(spans: np.ndarray) -> int:
    """Length of the union of intervals that are sorted by their start."""
    if not len(spans):
        return 0
    reach = np.maximum.accumulate(spans[:, 1])
    before = np.concatenate([[spans[0, 0]], reach[:-1]])
    return int(np.maximum(0, spans[:, 1] - np.maximum(before, spans[:, 0])).sum())


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
                format_ps(spent),
                f"{share:.1%}",
                format_bytes(moved),
            )
        )
    table = text_table(("engine", "operation", "events", "time", "of all units", "bytes"), rows)
    machine = f" on {trace.machine}" if trace.machine else ""
    return f"{format_ps(total)}{machine}, {len(trace.units)} units, {len(trace)} events\n{table}"
