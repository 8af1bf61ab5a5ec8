"""Time and bus bandwidth over size, one line per algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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
