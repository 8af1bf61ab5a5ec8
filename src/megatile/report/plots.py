"""Times as lines: of collectives over their size, of a plan over a parameter of its machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megatile.core.quantities import format_bytes
from megatile.report.canvas import new_figure, save

Points = Sequence[tuple[float, float]]
NEAR_BEST = 1.05
"""Times within this factor of the best count as good as it: there the knee of a sweep is."""


def draw_lines(axes: Any, lines: Mapping[str, Points], size: float = 4, **settings: Any) -> None:
    """Draw a line with its own marks for every name, over a grid."""
    for number, (name, points) in enumerate(lines.items()):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, marker="osv^Dx*+"[number % 8], markersize=size, label=name)
    axes.set(**settings)
    axes.grid(True, alpha=0.3)


def plot_sweep(
    lines: Mapping[str, Sequence[tuple[int, float, float]]],
    path: str | Path,
    title: str = "",
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Draw ``{algorithm: [(bytes, microseconds, GB/s), ...]}`` into an image file (format by its suffix).

    ``chosen`` names for a line (``auto``) the algorithm of each point; where it changes, the plot says so.
    """
    figure = new_figure(11, 4.2, constrained_layout=True)
    left, right = figure.subplots(1, 2)
    for axes, value, label in ((left, 1, "time (µs)"), (right, 2, "bus bandwidth (GB/s)")):
        shown = {name: [(point[0], point[value]) for point in points] for name, points in lines.items()}
        draw_lines(axes, shown, xlabel="size", ylabel=label)
        axes.set_xscale("log", base=2)
        _label_sizes(axes, sorted({point[0] for points in lines.values() for point in points}))
        for name, algorithms in (chosen or {}).items():
            _mark_changes(axes, shown[name], [f"{name}: {x.partition('(')[0]}" for x in algorithms])
    left.set_yscale("log")
    write_plain_numbers(left.yaxis)
    left.legend(fontsize=8)
    figure.suptitle(title)
    return save(figure, path, title, dpi=130)


def write_plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis with 60 and 100, not with 6 × 10¹ and 10²."""
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(_plain_number)


def _plain_number(value: float, _: int) -> str:
    """Write 2, 4 and 6 times a power of ten as they are; between them there is no room for labels."""
    return f"{value:,g}" if f"{value:e}"[0] in "246" else ""


def _label_sizes(axes: Any, sizes: Sequence[int]) -> None:
    """Write sizes as KiB and MiB, at most a dozen of them."""
    some = sizes[:: -(-len(sizes) // 12) or 1]
    axes.set_xticks(some, [format_bytes(size) for size in some], fontsize=7, rotation=30)
    axes.set_xticks([], minor=True)


def _mark_changes(axes: Any, points: Points, names: Sequence[str]) -> None:
    """Write the name of an algorithm at its first point."""
    for number, (point, name) in enumerate(zip(points, names, strict=True)):
        if number == 0 or names[number - 1] != name:
            axes.annotate(
                name, point, xytext=(0, 14 if number % 2 == 0 else 26),
                ha="center" if number else "left",
                textcoords="offset points", fontsize=7,
                arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "0.5"},
            )  # fmt: skip


def _knee(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first of several rows from which on no row is more than 5 % faster; the last one is none."""
    times = [row["time_us"] for row in rows if row["time_us"] is not None]
    if len(times) < 3 or times[0] <= NEAR_BEST * min(times) or min(times[:-1]) > NEAR_BEST * min(times):
        return None
    return next(
        row for row in rows if row["time_us"] is not None and row["time_us"] <= NEAR_BEST * min(times)
    )


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
    knee = None if others or any("knee" in row for row in rows) else _knee(rows)
    for row in rows:
        if row["time_us"] is not None:
            label = ", ".join(f"{name.split('.')[-1]} {row[name]}" for name in others)
            at, tuned = ticks.index(str(row[first])), "fixed_us" in row
            lines.setdefault(f"best {label}".strip() if tuned else label, []).append((at, row["time_us"]))
            if row.get("fixed_us") is not None:
                lines.setdefault(f"first choice {label}".strip(), []).append((at, row["fixed_us"]))
            if row.get("knee") or row is knee:
                axes.axvline(at, linestyle=":", color="grey")
                axes.annotate(
                    "knee: more gains < 5 %", (at, 0), xytext=(3, 4), textcoords="offset points", fontsize=8
                )
    draw_lines(axes, lines, xlabel=first, ylabel="time (µs)")
    axes.set_xticks(range(len(ticks)), ticks)
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    if len(lines) > 1:
        axes.legend(fontsize=8)
    axes.set_title(title, fontsize=10)
    return save(figure, path, title, dpi=130)
