"""``ir/passes/remove_jumps.py``: control flow without jumps."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def counting(most: int, step: int):
    @T.program
    def count(A: T.Tensor((4,), "i32")):
        with T.Kernel(block=1, threads=4):
            x = T.alloc((4,), "i32")
            T.copy(x, A[0])
            while T.bounded(x[0] < most, 64):
                for i in T.Parallel(4):
                    x[i] = x[i] + step
            T.copy(A[0], x)

    return count


@pytest.mark.parametrize(("most", "step"), [(0, 1), (1, 1), (30, 1), (63, 1), (30, 7)])
def test_a_while_ends_when_it_should(most: int, step: int) -> None:
    a = np.arange(4, dtype="i4")
    result = mt.simulate(counting(most, step), a, machine="dgx-h100")
    mt.run(counting(most, step), a)
    np.testing.assert_array_equal(result.outputs["A"], a)
    assert mt.price(counting(most, step), machine="dgx-h100").lower_ps <= result.time_ps


def test_a_while_that_never_ends_is_an_error() -> None:
    with pytest.raises(mt.MegatileError, match=r"test_remove_jumps.py:\d+: .*while_goes_on"):
        mt.execute(counting(1, 0), np.zeros(4, "i4"), machine="dgx-h100")
