"""``report/plots.py``: times as lines."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("times", "knee"),
    [([8.0, 4.0, 2.0, 1.99], 2), ([1.0, 1.0, 1.0], None), ([2.0, 1.0], None), ([8.0, 4.0, 2.0], None)],
)
def test_the_knee_is_the_first_row_that_is_nearly_the_best(times: list[float], knee: int | None) -> None:
    from megatile.report.plots import _knee

    rows = [{"time_us": time} for time in times]
    assert _knee(rows) is (None if knee is None else rows[knee])


def test_logarithmic_axes_have_plain_numbers() -> None:
    from megatile.report.plots import _plain_number

    assert [_plain_number(value, 0) for value in (60, 70, 4000, 0.2)] == ["60", "", "4,000", "0.2"]
