"""``trace/critical.py``: why is it slow."""

from __future__ import annotations

from tests.report.shared import two_units

from megatile.trace import TraceBuilder, critical_path, why_slow


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
