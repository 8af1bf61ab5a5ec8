"""``report/plots.py``: times as lines."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("times", "knee"), [([8.0, 4.0, 2.0, 1.99], 2), ([1.0, 1.0, 1.0], None), ([2.0, 1.0], None)]
)
def test_the_knee_is_the_first_row_that_is_nearly_the_best(times: list[float], knee: int | None) -> None:
    from megatile.report.plots import _knee

    rows = [{"time_us": time} for time in times]
    assert _knee(rows) is (None if knee is None else rows[knee])
