"""Reports on a small hand-made trace whose every figure is known."""

from __future__ import annotations

import subprocess
import sys

import pytest

from megatile.report import draw_timeline, summary, timeline, write_dump
from megatile.trace import (
    Trace,
    TraceBuilder,
    TraceError,
    Waiter,
    WaitGraph,
    busy_ps,
    critical_path,
    exposed_ps,
    text_table,
    why_slow,
)


def two_units() -> Trace:
    """pe0 loads 0-100, adds 100-300 and sends 100-250; pe1 waits for it 0-400, then adds 400-450."""
    b = TraceBuilder("toy")
    load = b.add(
        unit="pe0", engine="dma", operation="load", start_ps=0, end_ps=100, bytes=512, source="k.py:1"
    )
    b.add(
        unit="pe0",
        engine="vector",
        operation="add",
        start_ps=100,
        end_ps=300,
        cause=load,
        source="k.py:2",
    )
    send = b.add(
        unit="pe0",
        engine="dma",
        operation="send",
        start_ps=100,
        end_ps=250,
        cause=load,
        bytes=512,
        source="k.py:3",
    )
    recv = b.add(
        unit="pe1", engine="channel", operation="recv", start_ps=0, end_ps=400, cause=send, source="k.py:4"
    )
    b.add(unit="pe1", engine="vector", operation="add", start_ps=400, end_ps=450, cause=recv, source="k.py:5")
    b.flow(send, recv)
    return b.build()


def test_busy_and_exposed_time() -> None:
    assert busy_ps(two_units()) == {"dma": 250, "vector": 250}
    # pe0 is covered 0-300, of which 200 compute; pe1 is covered 0-450, of which 50 compute.
    assert exposed_ps(two_units()) == {"pe0": 100, "pe1": 400}


def test_the_critical_path_adds_up_to_the_whole_time() -> None:
    steps = critical_path(two_units())
    assert [(s.event.operation, s.adds_ps) for s in steps] == [
        ("load", 100),
        ("send", 150),
        ("recv", 150),
        ("add", 50),
    ]
    assert sum(s.adds_ps for s in steps) == two_units().end_ps
    assert str(steps[1]) == "pe0 dma send: 150 ps  k.py:3"
    assert critical_path(TraceBuilder().build()) == []


def test_why_slow_names_the_lines() -> None:
    text = why_slow(two_units())
    assert text.startswith("critical path: 4 events, 450 ps")
    assert text.splitlines()[2].split() == ["recv", "channel", "1", "150", "ps", "33.3%", "k.py:4"]


def test_summary_is_a_table() -> None:
    text = summary(two_units())
    assert text.startswith("450 ps on toy, 2 units, 5 events")
    row = ["dma", "load", "1", "100", "ps", "11.1%", "512", "B"]
    assert row in [line.split() for line in text.splitlines()]


def test_tables() -> None:
    assert text_table(("a", "b"), [("x", 10)]) == "a   b\nx  10"


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


def test_reports_do_not_load_matplotlib_before_they_draw() -> None:
    code = "import sys, megatile.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dumps_are_written_as_text_and_graph(tmp_path) -> None:
    graph = WaitGraph((Waiter("a", "recv", "data", "W", "b"), Waiter("b", "recv", "data", "E", "a")))
    text, dot = write_dump(graph, tmp_path / "deadlock")
    assert "wait cycle: a -> b -> a" in text.read_text()
    assert dot.read_text().startswith("digraph")
