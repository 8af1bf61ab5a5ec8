"""``language/kernel/values.py``: what a kernel holds while it is read."""

from __future__ import annotations

import numpy as np
from tests.language.kernel.reader_cases import run


def test_choosing_between_tiles_and_integers():
    def kernel(t_ptr, tl):
        rank = tl.program_id(0)
        mine = t_ptr + rank * 8
        x = tl.load(mine, (4,))
        y = x * 2 if rank > 0 and not (rank == 2 or rank == 9) else x
        factor = 3 if 0 < rank <= 2 else 1
        tl.store(mine, y * factor + min(rank, 1) + max(rank, 1) + abs(rank - 2))

    plan, x, result = run(kernel, units=4)
    assert len(plan.streams) == 1
    y = x * np.asarray([1, 2, 1, 2])[:, None]
    extra = np.asarray([0 + 1 + 2, 1 + 1 + 1, 1 + 2 + 0, 1 + 3 + 1])[:, None]
    np.testing.assert_array_equal(result, y * np.asarray([1, 3, 3, 1])[:, None] + extra)
