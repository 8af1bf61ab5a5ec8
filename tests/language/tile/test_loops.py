"""``language/tile/loops.py``: loops of the tile language."""

import numpy as np
import pytest
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_loops() -> None:
    @T.program
    def p(X: T.Tensor((5, 12), "i32")):
        with T.Kernel(block=2) as b:
            if b == 0:
                for k in T.serial(2, 10, 3):
                    X[0, k] = k
                for k in T.unroll(4):
                    X[1, k] = k
                for k in T.vectorized(4):
                    X[2, k] = k
            for k in T.Persistent(12, 2, b):
                X[3, k] = b
            for k in range(3):  # while building
                if b == 1:
                    X[4, k] = k + 1

    x = zeros(5, 12, dtype=np.int32)
    mt.run(p, x)
    assert [k for k in range(12) if x[0, k]] == [2, 5, 8]
    np.testing.assert_array_equal(x[1:3, :4], [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(x[3], [0, 1] * 6)
    np.testing.assert_array_equal(x[4, :3], [1, 2, 3])


def test_serial_loop_inside_parallel_code() -> None:
    @T.program
    def p(A: T.Tensor((4, 5), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                Y[i] = 0.0
                for k in T.serial(5):
                    Y[i] = Y[i] + A[i, k]

    a, y = f32(4, 5), zeros(4)
    mt.run(p, a, y)
    np.testing.assert_allclose(y, a.sum(axis=1), rtol=1e-6)


def test_loops_around_larger_regions() -> None:
    @T.program
    def p(X: T.Tensor((2, 4), "i32")):
        with T.Kernel(device=2, block=4) as b:
            for k in T.serial(3):
                with T.Scale("device") as (d, _):
                    x = T.view(X, layout=T.FullRow)
                with T.Scale("block"):
                    x[0, b] = x[0, b] + k * b
            for k in T.serial(2):
                T.device_assert(k < 2)

    x = zeros(2, 4, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[0, 3, 6, 9]] * 2)


def test_loop_variables_keep_their_names() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32")):
        with T.Kernel(block=1):
            for step in T.serial(4):
                for row, _ in T.Parallel(4, 4):
                    X[row, step] = 1

    assert "for step in serial" in str(p)
    assert "for row, j in parallel" in str(p)


def test_persistent_tiles_of_two_dimensions() -> None:
    @T.program
    def tiles(A: T.Tensor((8, 12), "f32")):
        with T.Kernel(block=5, threads=32) as b:
            for i, j in T.Persistent((4, 3), 5, b):
                t = T.alloc_shared((2, 4), "f32")
                T.fill(t, 3.0 * i + j)
                T.copy(A[i * 2, j * 4], t)

    a = np.zeros((8, 12), np.float32)
    mt.run(tiles, a)
    np.testing.assert_array_equal(a, np.arange(12).reshape(4, 3).repeat(2, 0).repeat(4, 1))


def test_loops_outside_a_kernel() -> None:
    with pytest.raises(ProgramError, match=r"a T.serial loop outside a kernel"):
        list(T.serial(4))
