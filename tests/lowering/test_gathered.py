"""``lowering/gathered.py``: parts of tiles whose indices are no run."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


@pytest.mark.parametrize("scale", ["block", "warpgroup"])
def test_views_whose_owner_function_scatters_indices(scale: str) -> None:
    """Units have every third row, and columns of no order."""
    rows, units = 7, 3
    launch = {"device": 1, "block": units} if scale == "block" else {"block": 1, "warpgroup": units}
    level = "l2" if scale == "block" else "l1"

    @T.program
    def kernel(X: T.Tensor((rows, 6), "f32"), Y: T.Tensor((rows, 6), "f32"), S: T.Tensor((units, 4), "f32")):
        with T.Kernel(**launch), T.Scale("device" if scale == "block" else "block"):
            t = T.alloc((rows, 6), "f32", level=level)
            T.copy(t, X)
            with T.Scale(scale) as (r, _):
                mine = T.view(t, layout=lambda i, j: i % units)
                part = T.alloc((3, 6), "f32", level="l1")
                total = T.alloc((3,), "f32", level="l1")
                T.clear(part)
                for i, j in T.Parallel(mine.shape[0], 6):
                    mine[i, j] = mine[i, j] * 2.0 + r
                T.copy(part[0 : mine.shape[0], :], mine)
                T.reduce_sum(part, total, dim=1)
                T.copy(S[r, 0:3], total)
            T.copy(Y, t)

    x = np.arange(rows * 6, dtype="f4").reshape(rows, 6)
    arrays = [x, 0 * x, np.zeros((units, 4), "f4")]
    wanted = [a.copy() for a in arrays]
    mt.run(kernel, *wanted)
    lowered = mt.lower(kernel)
    mt.check(lowered)
    got = mt.execute(lowered, *arrays)
    np.testing.assert_array_equal(got["Y"], wanted[1])
    np.testing.assert_array_equal(got["Y"], 2 * x + (np.arange(rows) % units)[:, None])
    np.testing.assert_array_equal(got["S"], wanted[2])
    np.testing.assert_array_equal(mt.simulate(lowered, *arrays).outputs["S"], wanted[2])
