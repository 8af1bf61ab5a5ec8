"""``report/timeline.py``: a Trace as a picture."""

from __future__ import annotations

import pytest
from tests.report.shared import two_units

from megatile.report import draw_timeline, timeline
from megatile.trace import Trace, TraceBuilder, TraceError


def test_the_timeline_is_a_png(tmp_path) -> None:
    first = draw_timeline(two_units(), tmp_path / "a.png").read_bytes()
    assert first.startswith(b"\x89PNG")
    assert draw_timeline(two_units(), tmp_path / "b.png").read_bytes() == first
    assert draw_timeline(TraceBuilder().build(), tmp_path / "c.png").stat().st_size > 0


def figure_of(trace: Trace, tmp_path, monkeypatch, **options):
    """The axes that are saved."""
    kept = []
    monkeypatch.setattr(timeline, "save", lambda figure, *_, **__: kept.append(figure))
    draw_timeline(trace, tmp_path / "t.png", **options)
    return kept[0].axes[0]


def bars_of(axes):
    """(left, right, hatched) of every bar."""
    return [
        (path.vertices[:, 0].min(), path.vertices[:, 0].max(), bool(bars.get_hatch()))
        for bars in axes.collections
        for path in bars.get_paths()
    ]


def test_the_timeline_shows_every_event_with_a_visible_width(tmp_path, monkeypatch) -> None:
    builder = TraceBuilder("toy")
    builder.add(unit="pe0", engine="dma.17", operation="load", start_ps=0, end_ps=1_000_000)
    for i in range(24):
        builder.add(unit="pe0", engine="vector", operation="add", start_ps=i * 40_000, end_ps=i * 40_000 + 1)
    builder.add(unit="pe0", engine="channel", operation="receive", start_ps=0, end_ps=10)
    axes = figure_of(builder.build(), tmp_path, monkeypatch)
    bars = bars_of(axes)
    assert len(bars) == 26
    left, right = axes.get_xlim()
    assert all(end - start >= (right - left) / 700 for start, end, _ in bars)
    assert (left, right) == (0, max(end for _, end, _ in bars))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["pe0 dma", "pe0 vector", "pe0 channel"]
    assert [hatched for *_, hatched in bars].count(True) == 1
    assert any("waiting: receive" in text.get_text() for text in axes.get_legend().get_texts())


def test_the_timeline_says_what_it_leaves_out_and_lets_one_choose(tmp_path, monkeypatch) -> None:
    builder = TraceBuilder("toy")
    for unit in range(100):
        builder.add(unit=f"n{unit // 10}/pe{unit}", engine="dma", operation="x", start_ps=0, end_ps=unit + 1)
    trace = builder.build()
    axes = figure_of(trace, tmp_path, monkeypatch)
    assert "64 of 100 rows are shown: choose others by units" in axes.get_xlabel()
    assert axes.get_xlim()[1] == pytest.approx(0.064)  # where the bars shown end
    for units, first, count in (("20-29,3", "n0/pe3 dma", 11), ("n9/*", "n9/pe90 dma", 10)):
        axes = figure_of(trace, tmp_path, monkeypatch, units=units)
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert (labels[0], len(labels)) == (first, count)
        assert axes.get_xlabel().endswith(f"{count} of 100 rows are shown")
    with pytest.raises(TraceError, match="'n77/pe1' is not among the 100 units"):
        draw_timeline(trace, tmp_path / "t.png", units="n77/pe1")
