"""``report/summary.py``: where the time went, operation by operation."""

from __future__ import annotations

from tests.report.shared import two_units

from megatile.report import summary


def test_summary_is_a_table() -> None:
    text = summary(two_units())
    assert text.startswith("450 ps on toy, 2 units, 5 events")
    row = ["dma", "load", "1", "100", "ps", "11.1%", "512", "B"]
    assert row in [line.split() for line in text.splitlines()]
