"""A Trace as a picture: one row per unit and engine, one bar per event."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megatile.core.quantities import TIMES, format_time
from megatile.trace import Trace

_MAX_ROWS = 64


def draw_timeline(trace: Trace, path: str | Path, *, rows: int = _MAX_ROWS) -> Path:
    """Draw the first ``rows`` tracks into a PNG file (matplotlib is imported here, not before)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    unit, engine = trace.columns["unit"].astype(np.int64), trace.columns["engine"].astype(np.int64)
    track = unit * max(1, len(trace.engines)) + engine
    tracks = np.unique(track)[:rows]
    figure = Figure(figsize=(12, 1.2 + 0.22 * max(1, len(tracks))))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = [f"C{i % 10}" for i in range(len(trace.operations))]
    scale, label = next((unit for unit in TIMES if trace.end_ps >= 10 * unit[0]), TIMES[-1])
    boxes, faces = [], []
    for row, number in enumerate(tracks.tolist()):
        for event in np.flatnonzero(track == number).tolist():
            start = trace.columns["start_ps"][event] / scale
            end = trace.columns["end_ps"][event] / scale
            boxes.append([(start, row - 0.4), (start, row + 0.4), (end, row + 0.4), (end, row - 0.4)])
            faces.append(colours[int(trace.columns["operation"][event])])
    axes.add_collection(PolyCollection(boxes, facecolors=faces, linewidths=0.2, edgecolors="white"))
    width = max(1, len(trace.engines))
    labels = [f"{trace.units[n // width]} {trace.engines[n % width]}" for n in tracks.tolist()]
    axes.set_yticks(range(len(tracks)), labels, fontsize=7)
    axes.set_ylim(max(1, len(tracks)) - 0.5, -0.5)
    axes.set_xlim(0, max(1, trace.end_ps) / scale)
    axes.set_xlabel(label)
    axes.set_title(f"{trace.machine} {format_time(trace.end_ps)}".strip(), fontsize=9)
    legend = [Patch(color=c, label=name) for c, name in zip(colours[:10], trace.operations[:10], strict=True)]
    if legend:
        axes.legend(
            handles=legend, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )  # beside the bars
    figure.tight_layout()
    # A fixed software tag keeps equal pictures equal byte for byte.
    figure.savefig(path, dpi=110, metadata={"Software": "megatile"})
    return Path(path)
