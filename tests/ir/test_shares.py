"""``ir/shares.py``: how views divide tensors over units, as expressions of a unit's number."""

from __future__ import annotations

import pytest
from tests.ir.passes.shared import resolved

from megatile.ir.shares import ViewError


def test_an_anchor_along_scattered_elements_is_refused() -> None:
    body = 'with scale("device"):\n    t = alloc((4,), "f32", "hbm", "device")\n    with scale("block"):\n'
    body += '        v = view("t", owner([[0, 2]], [[1, 3]]), "block")\n'
    body += "        copy(v[0::2], along(A[anchor(0, 2)], v))\n"
    with pytest.raises(ViewError, match="an anchor along 'v', whose elements are scattered"):
        resolved("A: f32[8]", body)


def test_a_table_of_too_many_units_is_refused() -> None:
    sets = ", ".join("[[0, 2]]" for _ in range(4097))
    body = f'with scale("device"):\n    v = view("A", owner({sets}), "device")\n    fill(v[0::2])\n'
    with pytest.raises(ViewError, match="over 4097 units, more than 4096"):
        resolved("A: f32[8]", body, 4097)
