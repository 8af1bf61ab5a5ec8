"""``lowering/phases.py``: regions."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.lowering.errors import LoweringError


def test_rounds_of_a_region_that_a_condition_leaves_out() -> None:
    @T.program
    def some(A: T.Tensor((6, 32), "f32"), B: T.Tensor((6, 32), "f32")):
        with T.Kernel(device=1, block=2, threads=32) as bx, T.Scale("device"):
            t = T.alloc((32,), "f32", level="l2")
            T.clear(t)
            for s in T.serial(6):
                if s % 2 == 1:
                    with T.Scale("block"):
                        x = T.alloc((16,), "f32")
                        y = T.alloc((16,), "f32")
                        T.copy(x, A[s, bx * 16 : bx * 16 + 16])
                        T.copy(y, t[bx * 16])
                        for i in T.Parallel(16):
                            x[i] = x[i] + y[i]
                        T.copy(t[bx * 16], x)
                T.copy(B[s, 0:32], t)

    a, b = np.random.default_rng(0).standard_normal((6, 32), dtype="f4"), np.zeros((6, 32), "f4")
    result = mt.simulate(some, a, b, machine="dgx-h100")
    mt.run(some, a, b)
    np.testing.assert_array_equal(result.outputs["B"], b)


def test_units_on_different_sides_of_a_branch_meet_where_both_have_the_same_meetings() -> None:
    def sums(looped: bool):
        @T.program
        def kernel(X: T.Tensor((4, 16), "f32"), Y: T.Tensor((4, 16), "f32")):
            with T.Kernel(block=1, warp=4), T.Scale("warp") as (w, _):
                x = T.alloc((1, 16), "f32", level="l1")
                T.copy(x, X[w, 0])
                if w % 2 == 0:
                    T.allreduce(x)
                else:
                    for i, j in T.Parallel(1, 16):
                        x[i, j] = x[i, j] * 2.0
                    for _ in T.serial(1) if looped else [0]:
                        T.allreduce(x)
                T.copy(Y[w, 0], x)

        return kernel

    x = np.arange(64, dtype="f4").reshape(4, 16)
    wanted = x[0] + 2 * x[1] + x[2] + 2 * x[3]
    got = mt.execute(sums(False), x, 0 * x, machine="dgx-h100")["Y"]
    np.testing.assert_array_equal(got, np.broadcast_to(wanted, x.shape))
    with pytest.raises(LoweringError, match="sides, taken by different units, have different meetings"):
        mt.lower(sums(True), machine="dgx-h100")
