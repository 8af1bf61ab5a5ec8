"""Numbers set on one branch only, and the buffers of pipelined loops."""

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


@pytest.mark.parametrize(("num_stages", "fits"), [(1, True), (3, False)])
def test_every_stage_of_a_pipelined_loop_needs_its_buffer(num_stages: int, fits: bool):
    @T.program
    def kernel(X: T.Tensor((1024, 128), "f32"), Y: T.Tensor((256, 128), "f32")):
        with T.Kernel(block=1, threads=128):
            tile = T.alloc((256, 128), "f32", level="l1")  # 128 KiB of the 227 KiB
            for k in T.Pipelined(4, num_stages=num_stages):
                T.copy(tile, X[k * 256, 0])
                T.copy(Y[0, 0], tile)

    x, y = np.ones((1024, 128), "f4"), np.zeros((256, 128), "f4")
    if fits:
        mt.run(kernel, x, y, machine="dgx-h100")
    else:
        with pytest.raises(mt.MegatileError, match="need 384 KiB of 'shared', but there are 227 KiB"):
            mt.run(kernel, x, y, machine="dgx-h100")
