"""Why is it slow: the chain of events that released each other, from the last one back."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.operations import spoken_operation
from megatile.core.quantities import format_time
from megatile.core.tables import text_table
from megatile.trace.events import Event, Trace


@dataclass(frozen=True)
class CriticalStep:
    """One event on the critical path and the time it alone adds to it."""

    event: Event
    adds_ps: int

    def __str__(self) -> str:
        where = f"  {self.event.source}" if self.event.source else ""
        event = self.event
        return f"{event.unit} {event.engine} {event.operation}: {format_time(self.adds_ps)}{where}"


@no_none
def critical_path(trace: Trace) -> list[CriticalStep]:
    """Return the steps that add up to the whole time, first to last.

    Starts at the event that ends last (the first such in the trace) and follows ``cause``. Each step
    adds the time from its cause's end to its own end, so the sum is the trace's end.
    """
    steps, reached = [], 0
    for number in critical_events(trace):
        until = max(reached, int(trace.columns["end_ps"][number]))
        steps.append(CriticalStep(trace[number], until - reached))
        reached = until
    return steps


def critical_events(trace: Trace) -> list[int]:
    """Return the numbers of the events on the critical path, first to last."""
    number = int(np.argmax(trace.columns["end_ps"])) if len(trace) else -1
    numbers: dict[int, None] = {}
    while number >= 0 and number not in numbers:
        numbers[number] = None
        number = int(trace.columns["cause"][number])
    return list(reversed(numbers))


@no_none
def critical_groups(trace: Trace) -> list[tuple[str, str, str, int, int, float]]:
    """Return the critical path added up: (operation, engine, source, steps, picoseconds, share), largest
    first."""
    grouped: dict[tuple[str, str, str], list[int]] = {}
    for step in critical_path(trace):
        key = (step.event.operation, step.event.engine, step.event.source)
        grouped.setdefault(key, []).append(step.adds_ps)
    ranked = sorted(grouped.items(), key=lambda item: (-sum(item[1]), item[0]))
    whole = max(1, trace.end_ps)
    return [(*key, len(parts), sum(parts), sum(parts) / whole) for key, parts in ranked]


@no_none
def why_slow(trace: Trace, limit: int = 10) -> str:
    """Return the critical path as text, added up by operation and source line, the largest share first."""
    groups = critical_groups(trace)
    rows = [
        (spoken_operation(operation), engine, steps, format_time(spent), f"{share:.1%}", _from_here(source))
        for operation, engine, source, steps, spent, share in groups[:limit]
    ]
    table = text_table(("operation", "engine", "steps", "time", "share", "source"), rows)
    steps, total = sum(group[3] for group in groups), sum(group[4] for group in groups)
    return f"critical path: {steps} events, {format_time(total)}\n{table}"


def _from_here(source: str) -> str:
    """Return a source line's path as seen from the working directory, if it lies below it."""
    return source.removeprefix(f"{Path.cwd()}{os.sep}")
