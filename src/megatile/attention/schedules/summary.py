"""A schedule in numbers: the load of its links and the work of its ranks, step by step."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from megatile.attention.schedules.bands import Mask
from megatile.attention.schedules.division import Division, division_for
from megatile.attention.schedules.schedule import Schedule, ScheduleError
from megatile.attention.schedules.work import StepWork

_MOST_TOKENS = 2**62  # integers of arrays end soon after


def schedule_summary(schedule: Schedule, length: int = 0, causal: bool = False) -> dict[str, Any]:
    """Plain data: the division of ``length`` tokens (default: a small number that divides evenly), cycles,
    steps.
    """
    routes = schedule.routes
    length = length or schedule.ranks * routes.chunks * 2
    if length >= _MOST_TOKENS:
        raise ScheduleError(f"{length} tokens are more than can be counted")
    layout = schedule.layout(causal).outer()
    pieces = layout.pieces([length])
    division = division_for(routes, pieces, pieces, Mask.of(causal), [length], [length])
    work = StepWork(division)
    return {
        "schedule": schedule.name,
        "ranks": schedule.ranks,
        "layout": layout.name,
        "ranks that divide the heads": schedule.heads,
        "chunks of KV": routes.chunks,
        "exchanges": routes.exchanges,
        "tokens": length,
        "cycles": [list(cycle) for cycle in getattr(routes, "cycles", ())],
        "steps": [_step(division, work, step) for step in range(routes.exchanges + 1)],
    }


def _step(division: Division, work: StepWork, step: int) -> dict[str, Any]:
    """What the exchange that starts with the step carries, and what the ranks compute in it."""
    load = division.link_loads(step)[1].tolist() if step < division.routes.exchanges else []
    return {
        "step": step,
        "links used": len(load),
        "tokens per link": _range(load),
        "visible pairs per rank": _range(work.pairs(step).tolist()),
        "kernels of rank 0": len(division.calls(step, 0)),
    }


def _range(values: Collection[int]) -> list[int]:
    """The least and the largest, once if they agree."""
    return sorted({min(values), max(values)}) if values else []
