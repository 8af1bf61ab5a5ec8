"""A picture of predicted attention: times over length, links per exchange, what every rank does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Bars = Sequence[tuple[int, str, float, float]]  # (rank, "compute" or "communication", start, end) in µs
_MOST_ROWS = 260
_COLOURS = {"compute": "#3b7dd8", "communication": "#e08a3c"}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), constrained_layout=True)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: str | Path) -> Path:
    # Without the time of writing, equal pictures are equal files.
    svg = str(path).lower().endswith(".svg")
    figure.savefig(path, dpi=120, metadata={"Date": None} if svg else {"Software": "megatile"})
    return Path(path)


def draw_prediction(
    times: Mapping[str, Sequence[tuple[int, float]]],
    loads: Mapping[str, Any],
    bars: Mapping[str, Bars],
    path: str | Path,
    title: str = "",
) -> Path:
    """Times over length for all schedules; for some, the load of links per exchange and what runs when.

    ``times``: {schedule: [(length, µs)]}; ``loads``: {schedule: bytes [sender, receiver, exchange]};
    ``bars``: {schedule: events of the ranks}.
    """
    figure = _figure(max(10.0, 5.0 * len(loads)), 10.5)
    grid = figure.add_gridspec(3, max(1, len(loads)))
    end = max((bar[3] for some in bars.values() for bar in some), default=1.0)
    _draw_times(figure.add_subplot(grid[0, :]), times)
    top = max((float(np.max(load)) for load in loads.values()), default=1.0)
    for column, (name, load) in enumerate(loads.items()):
        _draw_links(figure, figure.add_subplot(grid[1, column]), name, np.asarray(load), top)
        _draw_bars(figure.add_subplot(grid[2, column]), name, bars[name], end)
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def _draw_times(axes: Any, times: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for number, (name, points) in enumerate(times.items()):
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        axes.plot(xs, ys, marker="osv^Dx*+"[number % 8], markersize=5, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    lengths = sorted({x for points in times.values() for x, _ in points})
    axes.set_xticks(lengths, [_tokens(x) for x in lengths])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("tokens")
    axes.set_ylabel("time (µs)")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, ncol=2)


def _tokens(length: int) -> str:
    return (
        f"{length / 1e6:g}M"
        if length >= 1_000_000
        else f"{length / 1e3:g}K"
        if length >= 1000
        else str(length)
    )


def _draw_links(figure: Any, axes: Any, name: str, load: Any, top: float) -> None:
    """Links (sender to receiver) over exchanges; white links are idle."""
    ranks = load.shape[0]
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    if not pairs:
        axes.set_title(f"{name}: one rank has no links", fontsize=9)
        axes.set_axis_off()
        return
    picture = np.array([load[a, b] for a, b in pairs]).reshape(len(pairs), -1) / 2**20
    per_row = -(-len(pairs) // _MOST_ROWS) or 1
    shown = np.ma.masked_equal(_busiest(picture, per_row), 0)
    image = axes.imshow(
        shown, aspect="auto", cmap="YlOrRd", vmin=0, vmax=max(1e-9, top / 2**20), interpolation="nearest"
    )
    used = np.count_nonzero(picture.any(axis=1))
    axes.set_title(f"{name}: MiB on each link ({used} of {len(pairs)} used)", fontsize=9)
    axes.set_xlabel("exchange")
    count = picture.shape[1]
    axes.set_xticks(range(0, count, max(1, count // 12)))
    if ranks <= 32:
        for rank in range(1, ranks):
            axes.axhline(rank * (ranks - 1) / per_row - 0.5, color="0.85", linewidth=0.6)
    named = range(0, ranks, max(1, ranks // 16))
    middle = [(rank * (ranks - 1) + (ranks - 2) / 2) / per_row for rank in named]
    axes.set_yticks(middle, [str(rank) for rank in named], fontsize=7)
    axes.set_ylabel("links by sender")
    figure.colorbar(image, ax=axes)


def _busiest(picture: Any, count: int) -> Any:
    """Of ``count`` links one after the other the busiest: more rows than dots would be left out unseen."""
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
    axes.set_ylim(-0.6, ranks - 0.4)
    axes.set_xlim(0, 1.02 * end / factor)
    axes.invert_yaxis()
    axes.set_title(f"{name}: what every rank does", fontsize=9)
    axes.set_xlabel(unit)
    axes.set_ylabel("rank")
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
