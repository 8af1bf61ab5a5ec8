"""``language/tile/memory.py``: ``T.alloc`` and ``T.view``."""

from typing import Any

import numpy as np
import pytest
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_uneven_shards() -> None:
    @T.program
    def p(X: T.Tensor((10, 2), "i32"), N: T.Tensor((4,), "i32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.FullRow)
                N[r] = x.shape[0]
                for i in T.serial(x.shape[0]):
                    x[i, 0] = r
                    x[i, 1] = i

    x, n = zeros(10, 2, dtype=np.int32), zeros(4, dtype=np.int32)
    mt.run(p, x, n)
    np.testing.assert_array_equal(n, [3, 3, 3, 1])
    np.testing.assert_array_equal(x, [[i // 3, i % 3] for i in range(10)])


@pytest.mark.parametrize(
    ("order", "owner"),
    [
        ("zigzag", [0, 0, 1, 1, 2, 3, 3, 2, 1, 0]),
        ("striped", [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]),
    ],
)
def test_shards_in_other_orders(order: str, owner: list[int]) -> None:
    @T.program
    def p(X: T.Tensor((10,), "i32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Shard(0, order=order))
                for i in T.serial(x.shape[0]):
                    x[i] = r

    x = zeros(10, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, owner)


def test_an_order_that_does_not_exist() -> None:
    @T.program
    def p(X: T.Tensor((10,), "i32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                T.view(X, layout=T.Shard(0, order="spiral"))

    with pytest.raises(ProgramError, match=r"order='spiral'.*contiguous, zigzag, striped"):
        mt.run(p, zeros(10, dtype=np.int32))


@pytest.mark.parametrize(
    "owner",
    [
        lambda i, j: i % 2 + 2 * (j // 4),
        lambda i, j: (i // 3) + 2 * (j % 2),
        lambda i, j: 3 - (i % 2 + 2 * (j % 2)),
    ],
)
def test_owner_functions(owner: Any) -> None:
    @T.program
    def p(X: T.Tensor((6, 8), "i32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=owner)
                assert x.global_shape == (6, 8)
                for i, j in T.Parallel(x.shape[0], x.shape[1]):
                    x[i, j] = r * 100 + i * 10 + j

    x = zeros(6, 8, dtype=np.int32)
    mt.run(p, x)
    for unit in range(4):
        rows = sorted({i for i in range(6) for j in range(8) if owner(i, j) == unit})
        cols = sorted({j for i in range(6) for j in range(8) if owner(i, j) == unit})
        expected = unit * 100 + 10 * np.arange(len(rows))[:, None] + np.arange(len(cols))
        np.testing.assert_array_equal(x[np.ix_(rows, cols)], expected)


def test_owner_layout_with_an_anchor() -> None:
    """A view with strided rows takes its rows from the place of the whole tile."""

    @T.program
    def p(X: T.Tensor((16, 4), "f32"), Y: T.Tensor((16, 4), "f32")):
        with T.Kernel(block=2, threads=256) as b:
            t = T.alloc((8, 4), "f32", level="l1")
            with T.Scale("warpgroup"):
                v = T.view(t, layout=lambda i, j: i % 2)
                T.copy(v, X[b * 8, 0])
            T.copy(Y[b * 8, 0], t)

    x, y = f32(16, 4), zeros(16, 4)
    mt.run(p, x, y)
    np.testing.assert_array_equal(x, y)


def test_nested_views() -> None:
    @T.program
    def p(X: T.Tensor((16, 8), "i32")):
        with T.Kernel(device=2, block=4, threads=256) as b:
            with T.Scale("device"):
                by_device = T.view(X, layout=T.FullRow)
            with T.Scale("block"):
                by_block = T.view(by_device, layout=T.FullRow)
                with T.Scale("warpgroup") as (w, _):
                    by_group = T.view(by_block, layout=T.FullCol)
                    for i, j in T.Parallel(2, 4):
                        by_group[i, j] = 100 * b + 10 * w + j

    x = zeros(16, 8, dtype=np.int32)
    mt.run(p, x)
    expected = [[100 * (i % 8 // 2) + 10 * (j // 4) + j % 4 for j in range(8)] for i in range(16)]
    np.testing.assert_array_equal(x, expected)


def test_layout_of_an_earlier_view_is_used_again() -> None:
    @T.program
    def p(X: T.Tensor((8,), "i32")):
        with T.Kernel(device=2):
            with T.Scale("device"):
                T.view(X, layout=T.Shard(0))
            with T.Scale("device") as (r, _):
                T.fill(T.view(X), r)

    x = zeros(8, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0] * 4 + [1] * 4)


def test_a_replica_along_one_axis() -> None:
    def kernel(reduce: bool):
        @T.program
        def p(X: T.Tensor((4, 6), "f32"), Y: T.Tensor((4, 6), "f32")):
            with T.Kernel(device=(2, 3)):
                with T.Scale("device") as r:
                    x, y = (T.view(t, layout=(T.Shard(0), T.Replica)) for t in (X, Y))
                    for i, j in T.Parallel(2, 6):
                        y[i, j] = x[i, j] + T.cast(r.coords[1], "f32")
                    if reduce:
                        T.allreduce(y, axis=1)

        return p

    x, y = f32(4, 6), zeros(4, 6)
    mt.run(kernel(True), x, y)
    np.testing.assert_allclose(y, 3 * x + 3, rtol=1e-5)
    with pytest.raises(mt.MegatileError, match="copies of 'Y' differ: device .*a reduction along that axis"):
        mt.run(kernel(False), x, y)


def test_device_tiles_stay_between_regions() -> None:
    @T.program
    def p(X: T.Tensor((4,), "i32")):
        with T.Kernel(device=2, block=2) as b:
            with T.Scale("device") as (r, _):
                t = T.alloc((2,), "i32", level="l2")
            with T.Scale("block"):
                t[b] = b + 1
            with T.Scale("device") as (r, _):
                X[2 * r] = t[0] + 10 * r
                X[2 * r + 1] = t[1] + 10 * r

    x = zeros(4, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [1, 2, 11, 12])
