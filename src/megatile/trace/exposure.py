"""Communication that nothing hides: how long units wait or move data while none of their engines computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.arguments import no_none
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


@no_none
def busy_ps(trace: Trace) -> dict[str, int]:
    """Return time in which each kind of engine works, added up over all units (waiting is not work)."""
    length = trace.columns["end_ps"] - trace.columns["start_ps"]
    busy: dict[str, int] = {}
    for number, name in enumerate(trace.engines):
        kind = engine_kind(name)
        if kind not in WAITING:
            busy[kind] = busy.get(kind, 0) + int(length[trace.columns["engine"] == number].sum())
    return busy


@no_none
def exposed_ps(trace: Trace) -> dict[str, int]:
    """Per unit: time in which it communicates or waits and none of its compute engines works."""
    compute = [i for i, name in enumerate(trace.engines) if engine_kind(name) not in COMMUNICATION]
    launching = [i for i, name in enumerate(trace.operations) if name.split(" ")[0] == LAUNCH]
    counted = ~np.isin(trace.columns["operation"], launching)
    unit, start, end, engine = (trace.columns[n][counted] for n in ("unit", "start_ps", "end_ps", "engine"))
    exposed = uncovered_ps(unit, start, end, np.isin(engine, compute), len(trace.units))
    return dict(zip(trace.units, exposed.tolist(), strict=True))


def uncovered_ps(unit: Any, start: Any, end: Any, working: Any, units: int) -> Any:
    """Per unit, the time in which something is under way and nothing of it is work."""
    every = covered_ps(unit, start, end, units)
    return every - covered_ps(unit[working], start[working], end[working], units)


def covered_ps(unit: Any, start: Any, end: Any, units: int) -> Any:
    """Per unit, the length of the union of its events' times."""
    if not len(start):
        return np.zeros(units, dtype=np.int64)
    # Units one after another on one line of time, so that events of different ones never meet.
    span = int(end.max()) + 1
    if units * span > 1 << 62:
        half = units // 2
        low, high = unit < half, unit >= half
        parts = covered_ps(unit[low], start[low], end[low], half), unit[high] - half, start[high], end[high]
        return np.concatenate([parts[0], covered_ps(*parts[1:], units - half)])
    # With starts and ends each in order, nothing is under way between the i-th end and the next start.
    first, last = np.sort(unit * span + start), np.sort(unit * span + end)
    counts = np.bincount(unit, minlength=units)
    there = counts > 0
    after = np.cumsum(counts[there])
    before = after - counts[there]
    idle = np.append(np.maximum(0, first[1:] - last[:-1]), 0)
    idle[after - 1] = 0
    found = np.zeros(units, dtype=np.int64)
    found[there] = last[after - 1] - first[before] - np.add.reduceat(idle, before)
    return found
