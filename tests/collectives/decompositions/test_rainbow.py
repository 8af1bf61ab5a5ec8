"""``collectives/decompositions/rainbow.py``: the step from an odd to an even number of ranks."""

from __future__ import annotations

import pytest

from megatile.collectives.decompositions import gen_hamilton_circle


@pytest.mark.parametrize("n", [198, 702, 1022, 1023, 1024])
def test_large_sizes_need_no_doubled_form(n):
    cycles = gen_hamilton_circle(n).verify()
    assert len(cycles) == n - 1
