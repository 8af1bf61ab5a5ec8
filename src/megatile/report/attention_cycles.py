"""A picture of the cycles of a schedule: one panel per chunk, ranks on a circle."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from megatile.report.canvas import new_figure, save

Array = Any
MOST_PANELS = 24
MOST_NAMES = 32
"""Up to this many ranks every one has its number inside; beyond, some have it beside them."""
NODE_SHADES = ("white", "#d9e6f7", "#fbe3cd", "#dff0d8")


def draw_cycles(
    cycles: Sequence[Sequence[int]], path: str | Path, title: str = "", node: int | None = None
) -> Path:
    """Draw the first cycles (at most 24) into a PNG, SVG or PDF file; ``node``: ranks of each node."""
    shown = list(cycles[:MOST_PANELS]) or [[0]]
    columns = min(len(shown), 4 if len(shown) <= 8 else 6)
    rows = ceil(len(shown) / columns)
    side = 2.2 if len(shown[0]) <= 8 else 2.8
    width, height = side * columns, (side + 0.25) * rows + 0.5
    figure = new_figure(width, height)
    figure.subplots_adjust(0, 0, 1, 1 - 0.6 / height, wspace=0, hspace=0.25 / side)
    for index, cycle in enumerate(shown):
        axes: Any = figure.add_subplot(rows, columns, index + 1)
        _draw_cycle(axes, cycle, index, node or len(cycle))
    some = f", the first {len(shown)} of them" if len(shown) < len(cycles) else ""
    figure.suptitle(title + some, y=1 - 0.12 / height, va="top")
    return save(figure, path, title, dpi=120)


def _draw_cycle(axes: Any, cycle: Sequence[int], number: int, node: int) -> None:
    """Ranks on a circle, arrows along the chunk's path; arrows between nodes are dashed."""
    from matplotlib.collections import EllipseCollection, LineCollection, PolyCollection

    n = len(cycle)
    angles = 2 * np.pi * np.arange(n) / n
    spots = np.stack([np.sin(angles), np.cos(angles)], axis=1)
    # Between neighbours there is room for an arrow.
    radius = min(0.15, 0.3 * 2 * np.pi / n)
    colour = f"C{number % 10}"
    if n > 1:
        start, stop = np.array(cycle), np.roll(cycle, -1)
        lines, heads = _arrows(spots[start], spots[stop], radius)
        away = start // node != stop // node
        style = ["--" if other else "-" for other in away.tolist()]
        thin = 1.2 if n <= MOST_NAMES else 0.7
        axes.add_collection(LineCollection(list(lines), colors=colour, linewidths=thin, linestyles=style))
        axes.add_collection(PolyCollection(list(heads), facecolors=colour, edgecolors="none", zorder=3))
    shades = [NODE_SHADES[rank // node % len(NODE_SHADES)] for rank in range(n)]
    sizes = np.full(n, 2 * radius)
    discs = EllipseCollection(
        sizes, sizes, np.zeros(n), units="xy", offsets=spots, offset_transform=axes.transData,
        facecolors=shades, edgecolors="0.35", linewidths=0.8, zorder=4,
    )  # fmt: skip
    axes.add_collection(discs)
    axes.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    _name_ranks(axes, spots, radius)
    axes.set_title(f"chunk {number}", fontsize=9, pad=2)
    axes.axis("off")


def _arrows(start: Array, stop: Array, radius: float) -> tuple[Array, Array]:
    """Lines bent a little, so that an arrow and its return do not cover each other; their heads."""
    span = stop - start
    length = np.linalg.norm(span, axis=1, keepdims=True)
    aside = np.stack([span[:, 1], -span[:, 0]], axis=1)
    middle = (start + stop) / 2 + 0.08 * aside
    room = length - 2 * radius
    tip = np.minimum(min(0.09, 2.5 * radius), 0.7 * room)
    begin, end = radius / length, 1 - (radius + tip) / length
    at = begin[..., None] + (end - begin)[..., None] * np.linspace(0, 1, 12)[None, :, None]
    a, b, c = start[:, None], middle[:, None], stop[:, None]
    lines = (1 - at) ** 2 * a + 2 * at * (1 - at) * b + at**2 * c
    base = lines[:, -1]
    onward = stop - base
    onward = onward / np.linalg.norm(onward, axis=1, keepdims=True)
    side = np.stack([onward[:, 1], -onward[:, 0]], axis=1) * 0.4 * tip
    return lines, np.stack([base + side, base + onward * tip, base - side], axis=1)


def _name_ranks(axes: Any, spots: Array, radius: float) -> None:
    n = len(spots)
    inside = n <= MOST_NAMES
    size = min(8.0, 78 * radius) if inside else 6.0
    for rank in range(0, n, 1 if inside else ceil(n / 16)):
        x, y = spots[rank] * (1 if inside else 1.12)
        axes.text(x, y, str(rank), ha="center", va="center_baseline", fontsize=size, zorder=5)
