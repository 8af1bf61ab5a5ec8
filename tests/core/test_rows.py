"""``core/rows.py``: results with rows."""

import sys
from types import SimpleNamespace

import pytest
from tests.tuning.shared import FAST, PRODUCT, SIZES

import megatile as mt
from megatile.core.errors import MegatileError


def test_rows_become_data_frames_figures_and_tables(monkeypatch):
    found = mt.sweep(PRODUCT(), {"memory.shared.size": SIZES}, **FAST)
    html = found._repr_html_()
    assert html.count("<tr>") == 4
    assert "<th>time_us</th>" in html
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MegatileError, match="pandas is not installed"):
        found.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert found.to_pandas() == found.rows()
    graph = SimpleNamespace(Scatter=lambda **points: points, Figure=lambda points, layout: (points, layout))
    monkeypatch.setitem(sys.modules, "plotly", SimpleNamespace(graph_objects=graph))
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", graph)
    points, layout = found.to_plotly()
    assert points["x"] == SIZES
    assert points["y"] == [row["time_us"] for row in found.rows()]
    assert layout["xaxis_title"] == "memory.shared.size"
    with pytest.raises(MegatileError, match="the rows have no 'time'"):
        found.to_plotly(y="time")
