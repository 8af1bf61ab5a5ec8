"""A Trace as a picture: units and engines downwards, time to the right, one bar per event."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.errors import did_you_mean
from megatile.core.operations import spoken_operation
from megatile.core.quantities import TIMES, format_time
from megatile.report.canvas import new_figure, save
from megatile.report.palette import operation_colour
from megatile.trace import Trace, TraceError
from megatile.trace.lanes import Row, rows_of

MAX_ROWS = 64
"""Rows of a timeline."""
_NARROWEST = 1 / 600
"""A bar is at least this share of the axis wide: at 12 inches about two dots."""
_WAITING: dict[str, Any] = {"facecolors": "#eeeeee", "edgecolors": "#9a9a9a", "hatch": "////"}


@no_none
def draw_timeline(trace: Trace, path: str | Path, *, rows: int = MAX_ROWS, units: str | None = None) -> Path:
    """Draw a PNG, SVG or PDF with at most ``rows`` rows; ``units`` chooses whose.

    ``units`` is a list like ``0,8-15`` (numbers in the order of the trace) or ``sip0/cube0/*`` (names).
    What is left out stands under the picture. Commands that overlap lie in rows of their own; waiting is
    hatched and grey; a bar too narrow to see is widened.
    """
    every, row = rows_of(trace)
    chosen = choose_units(trace, units)
    fitting = [number for number, r in enumerate(every) if r.unit in chosen]
    shown = fitting[: max(1, rows)]
    figure = new_figure(12, 1.5 + 0.22 * max(1, len(shown)), constrained_layout=True)
    axes = figure.add_subplot()
    _draw_bars(axes, trace, every, row, shown)
    labels = [f"{trace.units[every[n].unit]} {every[n].name}" for n in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_title(f"{trace.machine} {format_time(trace.end_ps)}".strip(), fontsize=9)
    if len(shown) < len(every):
        left_out = f"{len(shown)} of {len(every)} rows are shown"
        if len(fitting) > len(shown):
            left_out += ": choose others by units (--units 8-15 or 'node1/*')"
        axes.set_xlabel(f"{axes.get_xlabel()}\n{left_out}")
    return save(figure, path, "timeline", dpi=110)


def choose_units(trace: Trace, text: str | None) -> set[int]:
    """Return the numbers of the units that ``0,8-15`` or ``sip0/cube0/*`` names; all without a text."""
    if text is None:
        return set(range(len(trace.units)))
    found: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        first, dash, last = part.partition("-")
        if first.isdecimal() and (not dash or last.isdecimal()):
            matching = list(range(int(first), min(int(last or first), len(trace.units) - 1) + 1))
        else:
            matching = [i for i, name in enumerate(trace.units) if fnmatchcase(name, part)]
        if not matching:
            advice = did_you_mean(part, trace.units[:200], what="units")
            raise TraceError(
                f"'{part}' is not among the {len(trace.units)} units of the trace", advice=advice
            )
        found.update(matching)
    return found


def _draw_bars(axes: Any, trace: Trace, every: list[Row], row: np.ndarray, shown: list[int]) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    line = np.full(len(every) + 1, -1)
    line[shown] = np.arange(len(shown))
    events = np.flatnonzero(line[row] >= 0) if len(trace) else np.zeros(0, dtype=np.int64)
    last = int(trace.columns["end_ps"][events].max()) if len(events) else 1
    scale, label = next((unit for unit in TIMES if last >= 10 * unit[0]), TIMES[-1])
    start, end = (trace.columns[name][events] / scale for name in ("start_ps", "end_ps"))
    limit = max(last, 1) / scale
    end = np.maximum(end, start + limit * _NARROWEST)
    y, waiting = line[row[events]], np.array([r.waiting for r in every], dtype=bool)
    operation = trace.columns["operation"][events]
    is_wait = waiting[row[events]] if len(events) else np.zeros(0, dtype=bool)
    corners = np.stack(
        [np.stack([start, y - 0.4], 1), np.stack([start, y + 0.4], 1)]
        + [np.stack([end, y + 0.4], 1), np.stack([end, y - 0.4], 1)],
        axis=1,
    )
    legend = []
    for number in np.unique(operation[~is_wait]).tolist():
        colour = operation_colour(trace.operations[number])
        bars = corners[(operation == number) & ~is_wait]
        axes.add_collection(PolyCollection(list(bars), facecolors=colour, linewidths=0.2, edgecolors="white"))
        legend.append(Patch(color=colour, label=spoken_operation(trace.operations[number])))
    if is_wait.any():
        axes.add_collection(PolyCollection(list(corners[is_wait]), linewidths=0.3, zorder=0.5, **_WAITING))
        names = [trace.operations[n] for n in np.unique(operation[is_wait]).tolist()]
        words = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        legend.append(
            Patch(facecolor="#eeeeee", edgecolor="#9a9a9a", hatch="////", label=f"waiting: {words}")
        )
    axes.set_xlim(0, max(limit, float(np.max(end)) if len(end) else 0))
    axes.set_xlabel(label)
    if legend:
        axes.legend(handles=legend, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
