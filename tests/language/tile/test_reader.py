"""``language/tile/reader.py``: reads a kernel."""

import numpy as np
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T


def test_helpers_macros_closures_and_lists() -> None:
    factors = [2.0, 3.0]

    @T.macro
    def scaled(tile, factor, upper):
        for i in T.Parallel(tile.shape[0]):
            if i < upper:
                tile[i] = tile[i] * factor

    def twice(tile):
        for f in factors:
            scaled(tile, f, 2)

    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            tiles = [T.alloc((4,), "f32") for _ in range(2)]
            T.copy(tiles[0], X)
            twice(tiles[0])
            T.copy(tiles[1], tiles[0])
            T.copy(X, tiles[1])

    x = np.ones(4, np.float32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [6, 6, 1, 1])


def test_conditions_inside_parallel_code() -> None:
    @T.program
    def p(X: T.Tensor((4, 6), "f32"), Y: T.Tensor((4, 6), "f32")):
        with T.Kernel(block=1):
            for i, j in T.Parallel(4, 6):
                if i > j:
                    v = X[i, j] * 2.0
                else:
                    v = -X[i, j]
                Y[i, j] = v + 1.0 if j < 3 and not i == 0 else v

    x, y = f32(4, 6), zeros(4, 6)
    mt.run(p, x, y)
    i, j = np.ogrid[:4, :6]
    expected = np.where(i > j, x * 2, -x)
    np.testing.assert_array_equal(y, np.where((j < 3) & (i != 0), expected + 1, expected))


def test_values_are_read_where_they_are_assigned() -> None:
    @T.program
    def p(A: T.Tensor((4,), "f32"), B: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                kept = A[i]
                A[i] = B[i]
                B[i] = kept

    a, b = f32(4), f32(4) + 1
    a0, b0 = a.copy(), b.copy()
    mt.run(p, a, b)
    np.testing.assert_array_equal(a, b0)
    np.testing.assert_array_equal(b, a0)


def test_a_unit_may_return_early() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=2, block=4):
            with T.Scale("device") as (d, _):
                with T.Scale("block") as (b, n):
                    if d == 1:
                        return
                    x = T.alloc((1,), "f32")
                    T.fill(x, b)
                    if b == 2:
                        return
                    T.copy(X[b : b + 1], x)

    x = np.full(4, -1, np.float32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0, 1, -1, 3])
