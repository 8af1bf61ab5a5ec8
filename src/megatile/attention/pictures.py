"""A picture of the cycles of a schedule: one panel per chunk, ranks on a circle."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, cos, pi, sin
from pathlib import Path
from typing import Any

MOST_PANELS = 24
NODE_SHADES = ("white", "#d9e6f7", "#fbe3cd", "#dff0d8")


def draw_cycles(
    cycles: Sequence[Sequence[int]], path: str | Path, title: str = "", node: int | None = None
) -> Path:
    """Draw the first cycles (at most 24) into a PNG, SVG or PDF file; ``node``: ranks of each node."""
    from matplotlib.figure import Figure

    shown = list(cycles[:MOST_PANELS]) or [[0]]
    columns = min(len(shown), 4 if len(shown) <= 8 else 6)
    rows = ceil(len(shown) / columns)
    figure = Figure(figsize=(2.2 * columns, 2.4 * rows + 0.5))
    for index, cycle in enumerate(shown):
        axes: Any = figure.add_subplot(rows, columns, index + 1)
        _draw_cycle(axes, cycle, index, node or len(cycle))
    hidden = len(cycles) - len(shown)
    figure.suptitle(title + (f" (and {hidden} more)" if hidden > 0 else ""))
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Date": None} if str(path).endswith("svg") else None)
    return Path(path)


def _draw_cycle(axes: Any, cycle: Sequence[int], number: int, node: int) -> None:
    """Ranks on a circle, arrows from the chunk's way; arrows between nodes are dashed."""
    n = len(cycle)
    spots = [(sin(2 * pi * r / n), cos(2 * pi * r / n)) for r in range(n)]
    size = 9 if n <= 16 else 6 if n <= 32 else 4
    for a, b in pairwise([*cycle, cycle[0]] if n > 1 else cycle):
        arrow = {
            "arrowstyle": "-|>",
            "shrinkA": size,
            "shrinkB": size,
            "color": f"C{number % 10}",
            "linestyle": "-" if a // node == b // node else (0, (3, 2)),
            "connectionstyle": "arc3,rad=0.08",
            "linewidth": 1.2,
        }
        axes.annotate("", xy=spots[b], xytext=spots[a], arrowprops=arrow)
    for rank, (x, y) in enumerate(spots):
        shade = NODE_SHADES[rank // node % len(NODE_SHADES)]
        axes.plot([x], [y], "o", markersize=1.6 * size, color=shade, markeredgecolor="0.35", zorder=3)
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=0.85 * size, zorder=4)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axes.set_title(f"chunk {number}", fontsize=9)
    axes.axis("off")
