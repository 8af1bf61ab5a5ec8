"""Times as lines: of collectives over their size, of a plan over a parameter of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatile.report.canvas import new_figure, save

Points = Sequence[tuple[float, float]]


def draw_lines(axes: Any, lines: Mapping[str, Points], size: float = 4, **settings: Any) -> None:
    """A line with its own marks for every name, over a grid."""
    for number, (name, points) in enumerate(lines.items()):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, marker="osv^Dx*+"[number % 8], markersize=size, label=name)
    axes.set(**settings)
    axes.grid(True, alpha=0.3)


def plot_sweep(
    lines: Mapping[str, Sequence[tuple[int, float, float]]], path: str | Path, title: str = ""
) -> Path:
    """Draw ``{algorithm: [(bytes, microseconds, GB/s), ...]}`` into an image file (format by its suffix)."""
    figure = new_figure(11, 4.2, constrained_layout=True)
    left, right = figure.subplots(1, 2)
    for axes, value, label in ((left, 1, "time (µs)"), (right, 2, "bus bandwidth (GB/s)")):
        shown = {name: [(point[0], point[value]) for point in points] for name, points in lines.items()}
        draw_lines(axes, shown, xlabel="size (bytes)", ylabel=label)
        axes.set_xscale("log", base=2)
    left.set_yscale("log")
    left.legend(fontsize=8)
    figure.suptitle(title)
    return save(figure, path, title, dpi=130)


def plot_times(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: str | Path, title: str = ""
) -> Path:
    """Draw ``time_us`` of rows over the first name into an image file (format by its suffix); beside it
    ``fixed_us``, the time of a program that stays as it is, and the row of the knee, where rows have them."""
    figure = new_figure(7, 4.2, constrained_layout=True)
    axes = figure.subplots()
    first, others = names[0], names[1:]
    ticks = list(dict.fromkeys(str(row[first]) for row in rows))
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row["time_us"] is not None:
            label = ", ".join(f"{name.split('.')[-1]} {row[name]}" for name in others)
            at, tuned = ticks.index(str(row[first])), "fixed_us" in row
            lines.setdefault(f"best {label}".strip() if tuned else label, []).append((at, row["time_us"]))
            if row.get("fixed_us") is not None:
                lines.setdefault(f"first choice {label}".strip(), []).append((at, row["fixed_us"]))
            if row.get("knee"):
                axes.axvline(at, linestyle=":", color="grey")
                axes.annotate("knee", (at, 0), xytext=(3, 3), textcoords="offset points", fontsize=8)
    draw_lines(axes, lines, xlabel=first, ylabel="time (µs)")
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_ylim(bottom=0)
    if len(lines) > 1:
        axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    return save(figure, path, title, dpi=130)
