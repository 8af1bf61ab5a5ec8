"""Reports on a small hand-made trace whose every figure is known."""

from __future__ import annotations

import subprocess
import sys

from megatile.report import write_dump
from megatile.trace import (
    Waiter,
    WaitGraph,
)


def test_reports_do_not_load_matplotlib_before_they_draw() -> None:
    code = "import sys, megatile.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dumps_are_written_as_text_and_graph(tmp_path) -> None:
    graph = WaitGraph((Waiter("a", "recv", "data", "W", "b"), Waiter("b", "recv", "data", "E", "a")))
    text, dot = write_dump(graph, tmp_path / "deadlock")
    assert "wait cycle: a -> b -> a" in text.read_text()
    assert dot.read_text().startswith("digraph")
