"""``collectives/decompositions/rainbow.py``: the step from an odd to an even number of ranks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from megatile.collectives.decompositions import gen_hamilton_circle
from megatile.collectives.decompositions.rainbow import colour, rainbow_path


@pytest.mark.parametrize("n", [198, 702, 1022, 1023, 1024])
def test_large_sizes_need_no_doubled_form(n):
    cycles = gen_hamilton_circle(n).verify()
    assert len(cycles) == n - 1


def test_every_even_size_has_a_path_with_every_colour():
    for n in range(6, 1025, 2):
        path = rainbow_path(n)
        assert path is not None, n
        assert set(path) == set(range(n + 1)), n
        assert len({colour(a, b, n) for a, b in pairwise(path)}) == len(path) - 1 == n
