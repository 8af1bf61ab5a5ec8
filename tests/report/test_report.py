"""Reports on a small hand-made trace whose every figure is known."""

from __future__ import annotations

import subprocess
import sys

from tests.report.shared import two_units

from megatile.report import write_dump
from megatile.trace import (
    TraceBuilder,
    Waiter,
    WaitGraph,
    busy_ps,
    critical_path,
    exposed_ps,
    text_table,
    why_slow,
)


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


def test_tables() -> None:
    assert text_table(("a", "b"), [("x", 10)]) == "a   b\nx  10"


def test_reports_do_not_load_matplotlib_before_they_draw() -> None:
    code = "import sys, megatile.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dumps_are_written_as_text_and_graph(tmp_path) -> None:
    graph = WaitGraph((Waiter("a", "recv", "data", "W", "b"), Waiter("b", "recv", "data", "E", "a")))
    text, dot = write_dump(graph, tmp_path / "deadlock")
    assert "wait cycle: a -> b -> a" in text.read_text()
    assert dot.read_text().startswith("digraph")
