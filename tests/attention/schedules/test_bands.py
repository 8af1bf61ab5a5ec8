"""``attention/schedules/bands.py``: masks as bands."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from megatile.attention.schedules import Mask, Piece
from megatile.attention.schedules.bands import visible_columns, visible_pairs, visible_rows


@given(st.integers(1, 9), st.integers(1, 9), st.one_of(st.none(), st.integers(-9, 9)), st.integers(-9, 9))
def test_band_arithmetic_against_counting(rows, columns, left, right):
    mask = Mask(None if left is None else left + 9, right)
    tile = mask.tile(Piece(9, rows), Piece(7, columns), 0)
    distance = (7 + np.arange(columns)[None, :]) - (9 + np.arange(rows)[:, None])
    seen = (distance <= right) & (True if left is None else distance >= -(left + 9))
    if tile is None:
        assert not seen.any()
        return
    assert visible_pairs(tile.band, rows, columns) == seen.sum()
    if seen.any():
        first, end = visible_rows(tile.band, rows, columns)
        assert seen.any(1).nonzero()[0].tolist() == list(range(first, end))
        first, end = visible_columns(tile.band, rows, columns)
        assert seen.any(0).nonzero()[0].tolist() == list(range(first, end))
    assert tile.band.full == seen.all()
