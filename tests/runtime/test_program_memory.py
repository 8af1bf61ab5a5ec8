"""``runtime/program_memory.py``: where the arrays and tiles of a compiled program lie in the memory of all
processes, and its call."""

from __future__ import annotations

import numpy as np
from tests.runtime.program_cases import turned

import megatile as mt


def test_what_is_inside_a_block_is_not_divided() -> None:
    y = np.zeros((2, 3), "f4")
    mt.launch(turned, y, processes=2)
    assert y.tolist() == [[2, 0, 1], [12, 10, 11]]
