"""``targets/cuda/layouts.py``: which elements of a tile a thread has."""

from __future__ import annotations

import pytest

from megatile.targets.cuda.layouts import grid


@pytest.mark.parametrize(
    ("shape", "threads", "asked", "vector"),
    [
        ((64, 128), 128, 4, 4),
        ((64, 66), 128, 4, 1),
        ((64, 6), 128, 2, 1),
        ((2, 32), 128, 4, 1),
        ((8, 64), 128, 4, 4),
    ],
)
def test_neighbours_of_a_thread_are_of_one_row(shape, threads, asked, vector):
    found = grid(shape, threads, asked)
    assert found.vector == vector
    assert found.columns % (found.wide * found.vector) == 0 or found.vector == 1
