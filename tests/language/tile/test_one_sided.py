"""Numbers set on one branch only."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def one_sided():
    @T.program
    def kernel(Y: T.Tensor((8,), "i32")):
        with T.Kernel(block=8, threads=32) as b:
            if b < 3:
                v = 1
            elif b < 5:
                v = b
            Y[b] = v

    return kernel


def test_a_number_set_on_some_branches_only_has_no_value():
    with pytest.raises(mt.MegatileError, match="'v' has no value here") as caught:
        mt.run(one_sided(), np.zeros(8, "i4"), machine="dgx-h100")
    assert "assign it before, on every path" in str(caught.value)


def test_a_number_set_on_every_path_is_right():
    @T.program
    def kernel(Y: T.Tensor((8,), "i32")):
        with T.Kernel(block=8, threads=32) as b:
            v = 7
            if b < 3:
                v = 1
            elif b < 5:
                v = b
            Y[b] = v

    y = np.zeros(8, "i4")
    mt.run(kernel, y, machine="dgx-h100")
    assert y.tolist() == [1, 1, 1, 3, 4, 7, 7, 7]
