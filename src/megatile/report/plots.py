"""Times as lines: of collectives over their size, of a plan over a parameter of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatile.report.canvas import new_figure, save


def plot_sweep(
    lines: Mapping[str, Sequence[tuple[int, float, float]]], path: str | Path, title: str = ""
) -> Path:
    """Draw ``{algorithm: [(bytes, microseconds, GB/s), ...]}`` into an image file (format by its suffix)."""
    figure = new_figure(11, 4.2, constrained_layout=True)
    left, right = figure.subplots(1, 2)
    for number, (name, points) in enumerate(lines.items()):
        marker = "osv^Dx*+"[number % 8]
        xs = [p[0] for p in points]
        left.plot(xs, [p[1] for p in points], marker=marker, markersize=4, label=name)
        right.plot(xs, [p[2] for p in points], marker=marker, markersize=4, label=name)
    for axes, label in ((left, "time (µs)"), (right, "bus bandwidth (GB/s)")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("size (bytes)")
        axes.set_ylabel(label)
        axes.grid(True, alpha=0.3)
    left.set_yscale("log")
    left.legend(fontsize=8)
    figure.suptitle(title)
    return save(figure, path, title, dpi=130)


def plot_times(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: str | Path, title: str = ""
) -> Path:
    """Draw ``time_us`` of rows over the first name into an image file (format by its suffix)."""
    figure = new_figure(7, 4.2, constrained_layout=True)
    axes = figure.subplots()
    first, others = names[0], names[1:]
    ticks = list(dict.fromkeys(str(row[first]) for row in rows))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["time_us"] is not None:
            label = ", ".join(f"{name.split('.')[-1]} {row[name]}" for name in others)
            lines.setdefault(label, []).append((ticks.index(str(row[first])), row["time_us"]))
    for number, (label, points) in enumerate(lines.items()):
        axes.plot(*zip(*points, strict=True), marker="osv^Dx*+"[number % 8], markersize=4, label=label)
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlabel(first)
    axes.set_ylabel("time (µs)")
    axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)
    if len(lines) > 1:
        axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    return save(figure, path, title, dpi=130)
