"""Pictures of attention: predicted times over length, what ranks exchange, what every rank does; the cycles
of a schedule, one panel per chunk, ranks on a circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from megatile.report.canvas import new_figure, save
from megatile.report.plots import draw_lines, write_plain_numbers

Bars = Sequence[tuple[int, str, float, float]]  # (rank, "compute" or "communication", start, end) in µs
Times = Mapping[str, Sequence[tuple[int, float]]]
_MAX_ROWS = 260
"""Rows of the heat map of links; more pairs share a row."""
_ROW_INCHES = 0.03  # 3.6 dots: 240 rows can be distinguished
_COLOURS = {"compute": "#3b7dd8", "communication": "#e08a3c"}


def draw_prediction(
    times: Times,
    loads: Mapping[str, Any],
    bars: Mapping[str, Bars],
    path: str | Path,
    title: str = "",
    links: Mapping[str, int] | None = None,
) -> Path:
    """Return times over length and ratios to the ring; for some schedules, what is sent and what runs when.

    ``times``: {schedule: [(length, µs)]}; ``loads``: {schedule: bytes [sender, receiver, exchange]};
    ``bars``: {schedule: events of the ranks}; ``links``: how many links of the machine carry data.
    """
    rows = max((len(load) * (len(load) - 1) for load in loads.values()), default=0)
    heat = max(3.4, _ROW_INCHES * min(rows, _MAX_ROWS))
    figure = new_figure(max(10.0, 5.0 * len(loads)), 7.1 + heat, constrained_layout=True)
    parts: Any = figure.subfigures(3, 1, height_ratios=[3.5, heat, 3.6])
    top, middle, bottom = parts
    left, right = top.subplots(1, 2)
    _draw_times(left, times)
    _draw_ratios(right, times)
    end = max((bar[3] for some in bars.values() for bar in some), default=1.0)
    most = max((float(np.max(load)) for load in loads.values()), default=1.0)
    columns = max(1, len(loads))
    maps = middle.subplots(1, columns, squeeze=False)[0]
    charts = bottom.subplots(1, columns, squeeze=False)[0]
    for (name, load), heat_map, chart in zip(loads.items(), maps, charts, strict=True):
        _draw_exchanges(middle, heat_map, name, np.asarray(load), most, (links or {}).get(name))
        _draw_bars(chart, name, bars[name], end)
    figure.suptitle(title, fontsize=11)
    return save(figure, path, title, dpi=120)


def _draw_times(axes: Any, times: Times) -> None:
    _draw_over_lengths(axes, times, yscale="log", ylabel="time (µs)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, ncol=2)


def _draw_ratios(axes: Any, times: Times) -> None:
    """Draw how many times as fast as the ring each schedule is."""
    base = next((name for name in ("ring", "zigzag") if name in times), next(iter(times), ""))
    of_base = dict(times.get(base, ()))
    ratios = {
        name: [(x, of_base[x] / y) for x, y in points if x in of_base and y > 0]
        for name, points in times.items()
    }
    _draw_over_lengths(axes, ratios, ylabel=f"times as fast as {base}")
    if not axes.patches:
        axes.set_ylim(bottom=0)


def _draw_over_lengths(axes: Any, times: Times, **settings: Any) -> None:
    if {len(points) for points in times.values()} == {1}:
        _draw_one_length(axes, {name: points[0][1] for name, points in times.items()}, settings)
        return
    draw_lines(axes, times, 5, xscale="log", xlabel="tokens", **settings)
    lengths = sorted({x for points in times.values() for x, _ in points})
    axes.set_xticks(lengths, [_tokens(x) for x in lengths])
    axes.set_xticks([], minor=True)
    if axes.get_yscale() == "log":
        write_plain_numbers(axes.yaxis)


def _draw_one_length(axes: Any, values: Mapping[str, float], settings: Mapping[str, Any]) -> None:
    """Bars instead of lines with one point each."""
    bars = axes.barh(list(values), list(values.values()), color="#9bb8d3")
    axes.bar_label(bars, [f"{value:,.4g}" for value in values.values()], padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel=settings["ylabel"])


def _tokens(length: int) -> str:
    """Return a length as people write it: 32768 is 32K, and 10000 is 10,000.

    >>> _tokens(32768), _tokens(3 << 20), _tokens(10_000)
    ('32K', '3M', '10,000')
    """
    for unit, letter in ((1 << 20, "M"), (1 << 10, "K")):
        if length and length % unit == 0:
            return f"{length // unit}{letter}"
    return f"{length:,}"


def _draw_exchanges(figure: Any, axes: Any, name: str, load: Any, top: float, links: int | None) -> None:
    """Draw pairs of ranks (sender to receiver) over exchanges; white pairs exchange nothing."""
    ranks = load.shape[0]
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    if not pairs:
        axes.set_title(f"{name}: one rank exchanges nothing", fontsize=9)
        axes.set_axis_off()
        return
    picture = np.array([load[a, b] for a, b in pairs]).reshape(len(pairs), -1) / 2**20
    per_row = -(-len(pairs) // _MAX_ROWS) or 1
    shown = np.ma.masked_equal(_busiest(picture, per_row), 0)
    image = axes.imshow(
        shown, aspect="auto", cmap="YlOrRd", vmin=0, vmax=max(1e-9, top / 2**20), interpolation="nearest"
    )
    used = np.count_nonzero(picture.any(axis=1))
    carried = "" if links is None else f" over {links} links"
    axes.set_title(f"{name}: MiB between ranks\n{used} of {len(pairs)} pairs{carried}", fontsize=9)
    axes.set_xlabel("exchange")
    count = picture.shape[1]
    axes.set_xticks(range(0, count, max(1, count // 12)))
    if ranks <= 32:
        for rank in range(1, ranks):
            axes.axhline(rank * (ranks - 1) / per_row - 0.5, color="0.85", linewidth=0.6)
    named = range(0, ranks, max(1, ranks // 16))
    middle = [(rank * (ranks - 1) + (ranks - 2) / 2) / per_row for rank in named]
    axes.set_yticks(middle, [str(rank) for rank in named], fontsize=7)
    axes.set_ylabel("pairs of ranks, by sender")
    figure.colorbar(image, ax=axes)


def _busiest(picture: Any, count: int) -> Any:
    """Of ``count`` pairs one after the other the busiest: more rows than dots would be left out unseen."""
    missing = -len(picture) % count
    padded = np.concatenate([picture, np.zeros((missing, picture.shape[1]))])
    return padded.reshape(-1, count, picture.shape[1]).max(axis=1)


def _draw_bars(axes: Any, name: str, bars: Bars, end: float) -> None:
    """Gantt chart on a scale that all schedules share."""
    unit, factor = ("ms", 1e3) if end >= 1e4 else ("µs", 1.0)
    for kind, shift in (("compute", -0.2), ("communication", 0.2)):
        chosen = _joined([bar for bar in bars if bar[1] == kind], end / 1000)
        axes.barh(
            [rank + shift for rank, *_ in chosen],
            [(stop - start) / factor for _, start, stop in chosen],
            left=[start / factor for _, start, _ in chosen],
            height=0.36, color=_COLOURS[kind], linewidth=0, label=kind,
        )  # fmt: skip
    ranks = 1 + max((bar[0] for bar in bars), default=0)
    axes.set_yticks(range(0, ranks, max(1, ranks // 16)))
    axes.set(xlim=(0, 1.02 * end / factor), ylim=(ranks - 0.4, -0.6), xlabel=unit, ylabel="rank")
    axes.set_title(f"{name}: what every rank does", fontsize=9)
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=2, frameon=False)


def _joined(bars: Bars, gap: float) -> list[tuple[int, float, float]]:
    """(rank, start, end) of bars that overlap or lie so close together that no eye would part them."""
    result: list[tuple[int, float, float]] = []
    for rank, _, start, stop in sorted(bars, key=lambda bar: (bar[0], bar[2])):
        if result and result[-1][0] == rank and start <= result[-1][2] + gap:
            result[-1] = (rank, result[-1][1], max(stop, result[-1][2]))
        else:
            result.append((rank, start, stop))
    return result


# --- cycles of a schedule

MAX_PANELS = 24
"""Cycles that are drawn, one panel each."""
MAX_NAMES = 32
"""Up to this many ranks every one has its number inside; beyond, some have it beside them."""
NODE_SHADES = ("white", "#d9e6f7", "#fbe3cd", "#dff0d8")


def draw_cycles(
    cycles: Sequence[Sequence[int]], path: str | Path, title: str = "", node: int | None = None
) -> Path:
    """Draw the first cycles (at most 24) into a PNG, SVG or PDF file; ``node``: ranks of each node."""
    shown = list(cycles[:MAX_PANELS]) or [[0]]
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
    """Draw ranks on a circle, arrows along the chunk's path; arrows between nodes are dashed."""
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
        thin = 1.2 if n <= MAX_NAMES else 0.7
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


def _arrows(start: Any, stop: Any, radius: float) -> tuple[Any, Any]:
    """Return lines bent a little, so that an arrow and its return do not cover each other; their heads."""
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


def _name_ranks(axes: Any, spots: Any, radius: float) -> None:
    n = len(spots)
    inside = n <= MAX_NAMES
    size = min(8.0, 78 * radius) if inside else 6.0
    for rank in range(0, n, 1 if inside else ceil(n / 16)):
        x, y = spots[rank] * (1 if inside else 1.12)
        axes.text(x, y, str(rank), ha="center", va="center_baseline", fontsize=size, zorder=5)
