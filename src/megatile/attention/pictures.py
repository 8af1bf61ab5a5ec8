"""A picture of the cycles of a schedule: one panel per chunk, ranks on a circle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, cos, pi, sin
from pathlib import Path
from typing import Any

MOST_PANELS = 24


def draw_cycles(cycles: Sequence[Sequence[int]], path: str | Path, title: str = "") -> Path:
    """Draw the first cycles (at most 24) into a PNG, SVG or PDF file; returns its path."""
    from matplotlib.figure import Figure

    shown = list(cycles[:MOST_PANELS]) or [[0]]
    columns = min(len(shown), 4 if len(shown) <= 8 else 6)
    rows = ceil(len(shown) / columns)
    figure = Figure(figsize=(2.2 * columns, 2.4 * rows + 0.5))
    for index, cycle in enumerate(shown):
        axes: Any = figure.add_subplot(rows, columns, index + 1)
        _draw_cycle(axes, cycle, index)
    hidden = len(cycles) - len(shown)
    figure.suptitle(title + (f" (and {hidden} more)" if hidden > 0 else ""))
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if str(path).endswith("svg") else None)
    return Path(path)


def _draw_cycle(axes: Any, cycle: Sequence[int], number: int) -> None:
    n = len(cycle)
    spots = [(sin(2 * pi * r / n), cos(2 * pi * r / n)) for r in range(n)]
    for a, b in pairwise([*cycle, cycle[0]]):
        axes.annotate(
            "",
            xy=spots[b],
            xytext=spots[a],
            arrowprops={"arrowstyle": "->", "shrinkA": 7, "shrinkB": 7, "color": "C0"},
        )
    for rank, (x, y) in enumerate(spots):
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.set_title(f"chunk {number}", fontsize=9)
    axes.axis("off")
