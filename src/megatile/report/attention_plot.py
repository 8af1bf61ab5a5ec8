"""A picture of predicted attention: times over length, links per exchange, what every rank does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Bars = Sequence[tuple[int, str, float, float]]  # (rank, "compute" or "communication", start, end) in µs
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
    figure = _figure(12, 10.5)
    grid = figure.add_gridspec(3, max(1, len(loads)))
    _draw_times(figure.add_subplot(grid[0, :]), times)
    top = max((float(np.max(load)) for load in loads.values()), default=1.0)
    for column, (name, load) in enumerate(loads.items()):
        _draw_links(figure, figure.add_subplot(grid[1, column]), name, np.asarray(load), top)
        _draw_bars(figure.add_subplot(grid[2, column]), name, bars[name])
    figure.suptitle(title, fontsize=11)
    return _save(figure, path)


def _draw_times(axes: Any, times: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for number, (name, points) in enumerate(times.items()):
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        axes.plot(xs, ys, marker="osv^Dx*+"[number % 8], markersize=5, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("time (µs)")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, ncol=2)


def _draw_links(figure: Any, axes: Any, name: str, load: Any, top: float) -> None:
    """Links (sender to receiver) over exchanges; white links are idle."""
    ranks = load.shape[0]
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    picture = np.array([load[a, b] for a, b in pairs]).reshape(len(pairs), -1) / 2**20
    image = axes.imshow(picture, aspect="auto", cmap="Oranges", vmin=0, vmax=max(1e-9, top / 2**20))
    axes.set_title(f"{name}: MiB on each link", fontsize=9)
    axes.set_xlabel("exchange")
    step = max(1, len(pairs) // 14)
    axes.set_yticks(range(0, len(pairs), step), [f"{a}→{b}" for a, b in pairs[::step]], fontsize=6)
    figure.colorbar(image, ax=axes)


def _draw_bars(axes: Any, name: str, bars: Bars) -> None:
    for rank, kind, start, end in bars:
        at = rank - 0.2 if kind == "compute" else rank + 0.2
        axes.barh(at, end - start, left=start, height=0.36, color=_COLOURS[kind], linewidth=0)
    for kind, colour in _COLOURS.items():
        axes.barh(0, 0, color=colour, label=kind)
    axes.invert_yaxis()
    axes.set_title(f"{name}: what every rank does", fontsize=9)
    axes.set_xlabel("µs")
    axes.set_ylabel("rank")
    axes.legend(fontsize=7, loc="lower right")
