"""``report/canvas.py``: a sheet of pixels to draw on."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from tests.report.shared import MACHINES

from megatile.report import canvas
from megatile.report.machine_panels import panels
from megatile.report.machine_picture import machine_figure


@pytest.mark.parametrize("name", MACHINES)
def test_no_text_is_clipped_and_none_covers_another(name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with canvas.settings():
        figure = machine_figure(MACHINES[name]())
        sheet = FigureCanvasAgg(figure)
        renderer = sheet.get_renderer()
        axes = figure.axes[0]
        boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in axes.texts if t.get_text()]
        frames = [p.get_window_extent(renderer) for p in axes.patches if p.get_zorder() == 1]
    assert len(frames) == len(panels(MACHINES[name]()))
    for text, box in boxes:
        assert within(box, (0, 0, *sheet.get_width_height())), f"{text!r} leaves the picture: {box}"
        for frame in frames:
            crosses = box.overlaps(frame) and not within(box, frame.extents)
            assert not crosses, f"{text!r} crosses the edge of a panel"
    covering = [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]
    assert covering == []


def within(box: Any, extents: Sequence[float]) -> bool:
    x0, y0, x1, y1 = extents
    return bool(box.x0 >= x0 and box.y0 >= y0 and box.x1 <= x1 and box.y1 <= y1)
