"""Communication that nothing hides: how long units wait or move data while none of their engines computes."""

from __future__ import annotations

import numpy as np

from megatile.trace.events import Trace

COMMUNICATION = ("dma", "channel", "control")
"""Engines that move data or wait for it (``dma.1`` counts as ``dma``); the others compute."""
WAITING = ("channel", "control")
"""Engines whose events are waiting, not work."""


LAUNCH = "launch"
"""The first word of the event of a launch, before the plan's name: waiting, but not for other units."""


def engine_kind(name: str) -> str:
    """``dma`` for ``dma.1``."""
    return name.split(".")[0]


def busy_ps(trace: Trace) -> dict[str, int]:
    """Time in which each kind of engine works, added up over all units (waiting is not work)."""
    length = trace.columns["end_ps"] - trace.columns["start_ps"]
    busy: dict[str, int] = {}
    for number, name in enumerate(trace.engines):
        kind = engine_kind(name)
        if kind not in WAITING:
            busy[kind] = busy.get(kind, 0) + int(length[trace.columns["engine"] == number].sum())
    return busy


def exposed_ps(trace: Trace) -> dict[str, int]:
    """Per unit: time in which it communicates or waits and none of its compute engines works."""
    compute = [i for i, name in enumerate(trace.engines) if engine_kind(name) not in COMMUNICATION]
    working = np.isin(trace.columns["engine"], compute)
    launching = [i for i, name in enumerate(trace.operations) if name.split(" ")[0] == LAUNCH]
    counted = ~np.isin(trace.columns["operation"], launching)
    result = {}
    for number, unit in enumerate(trace.units):
        mine = (trace.columns["unit"] == number) & counted
        result[unit] = covered_ps(trace, mine) - covered_ps(trace, mine & working)
    return result


def covered_ps(trace: Trace, mask: np.ndarray) -> int:
    """Length of the union of the chosen events' times."""
    start, end = trace.columns["start_ps"][mask], trace.columns["end_ps"][mask]
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    before = np.concatenate([start[:1], reach[:-1]])
    return int(np.maximum(0, end - np.maximum(before, start)).sum())
