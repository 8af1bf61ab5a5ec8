"""``models/schedules.py``: pipeline schedules."""

from __future__ import annotations

import pytest

from megatile.models.schedules import SCHEDULES, StageTimes, finish_us


@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (2, 2), (4, 8), (8, 8), (4, 1)])
def test_1f1b_has_the_known_bubble(stages: int, micro: int) -> None:
    orders = SCHEDULES["1f1b"](stages, micro, 1)
    assert finish_us(orders, [StageTimes(1, 2)] * stages, 0.0) == (micro + stages - 1) * 3


@pytest.mark.parametrize(("stages", "micro", "chunks"), [(2, 4, 2), (4, 8, 3), (4, 4, 2)])
def test_interleaving_divides_the_bubble(stages: int, micro: int, chunks: int) -> None:
    orders = SCHEDULES["interleaved"](stages, micro, chunks)
    taken = finish_us(orders, [StageTimes(1, 2)] * stages, 0.0, chunks)
    assert taken == micro * chunks * 3 + (stages - 1) * 3
    for order in orders:
        assert len(set(order)) == len(order) == 2 * micro * chunks


@pytest.mark.parametrize(("stages", "micro"), [(2, 4), (4, 8), (8, 16)])
def test_zero_bubble_waits_less_than_1f1b(stages: int, micro: int) -> None:
    plain = finish_us(SCHEDULES["1f1b"](stages, micro, 1), [StageTimes(1, 2)] * stages, 0.0)
    orders = SCHEDULES["zero_bubble"](stages, micro, 1)
    divided = finish_us(orders, [StageTimes(1, 1, 1)] * stages, 0.0)
    assert 3 * micro <= divided < plain
    assert divided == 3 * micro + (stages - 1)  # ZB-H1: (stages - 1)(F + B - W)
    for order in orders:
        assert sorted(i for kind, i, _ in order if kind == "W") == list(range(micro))
