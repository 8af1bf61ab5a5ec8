"""What programs may say: spellings, control flow, layouts, operations; each against NumPy."""

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.hda import ScaleView
from megatile.language.tile.errors import ProgramError


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def i32(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


# --- launches and scales --------------------------------------------------------------------------


@pytest.mark.parametrize(("wide", "narrow"), [("device", "threads"), ("gpu", "thread")])
def test_aliases_of_scales(wide: str, narrow: str) -> None:
    @T.program
    def p(X: T.Tensor((2, 2), "i32")):
        with T.Kernel(**{wide: 2, "block": 1, narrow: 256}):
            with T.Scale(wide):
                x = T.view(X, layout=T.FullRow)
            with T.Scale("block"):
                with T.Scale("warp_group") as (r, n):
                    x[0, r] = r + 10 * n

    x = zeros(2, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[20, 21], [20, 21]])


def test_the_three_spellings_of_scale() -> None:
    @T.program
    def p(X: T.Tensor((3, 2), "i32")):
        with T.Kernel(block=1, threads=256):
            with T.Scale("warpgroup") as (r, n):
                X[0, r] = n
            with T.Scale("warpgroup") as a, b:
                X[1, a] = b
            with T.Scale("warpgroup") as rank:
                X[2, rank] = rank.size

    x = zeros(3, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.full((3, 2), 2))


def test_coordinates_of_a_grid() -> None:
    @T.program
    def p(X: T.Tensor((8, 3), "i32")):
        with T.Kernel(device=(2, 4)):
            with T.Scale("device") as r:
                x, y = r.coords
                X[r, 0] = r
                X[r, 1] = x
                X[r, 2] = y

    x = zeros(8, 3, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[r, r % 2, r // 2] for r in range(8)])


def test_an_instance_as_launch() -> None:
    instance = mt.machine("dgx-h100").instantiate(
        [ScaleView("gpu", instance_num=2), ScaleView("block", instance_num=3, is_flatten=True),
         ScaleView("thread", instance_num=256, is_flatten=True)]
    )  # fmt: skip

    @T.program
    def p(X: T.Tensor((6, 2), "i32")):
        with instance:
            with T.Scale("block") as (b, _):
                with T.Scale("warpgroup") as (w, _):
                    X[b, w] = 10 * b + w

    x = zeros(6, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[10 * b, 10 * b + 1] for b in range(6)])


def test_scales_that_a_machine_lacks_have_one_unit() -> None:
    @T.program
    def p(X: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            with T.Scale("warpgroup") as (r, n):
                X[r] = n

    x = zeros(1, dtype=np.int32)
    mt.run(p, x, machine="cerebras-wse2")
    assert x[0] == 1


def test_waves() -> None:
    @T.program
    def p(X: T.Tensor((3000,), "i32")):
        with T.Kernel(block=3000, threads=1024) as b:
            X[b] = b + 1

    assert p.build().launch.slots == 264
    x = zeros(3000, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.arange(1, 3001))


def test_clusters_run_in_waves() -> None:
    @T.program
    def p(X: T.Tensor((3000, 2), "i32")):
        with T.Kernel(cluster=3000, block=2, threads=1024):
            with T.Scale("cluster") as (c, _):
                with T.Scale("block") as (b, _):
                    T.barrier()
                    X[c, b] = c

    assert p.build().launch.slots == 264
    x = zeros(3000, 2, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, np.repeat(np.arange(3000)[:, None], 2, axis=1))

    @T.program
    def waiting(X: T.Tensor((1,), "i32")):
        with T.Kernel(cluster=3000, block=2, threads=1024):
            with T.Scale("cluster"):
                T.barrier()

    with pytest.raises(mt.MegatileError, match="are not resident, only 132 fit at once"):
        mt.run(waiting, zeros(1, dtype=np.int32))


def test_positional_extents_are_blocks() -> None:
    @T.prim_func
    def p(X: T.Tensor((2, 3), "i32")):
        with T.Kernel(3, 2, threads=32) as (bx, by):
            X[by, bx] = bx + 10 * by

    x = zeros(2, 3, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [[0, 1, 2], [10, 11, 12]])


def test_rank_below_several_scales() -> None:
    @T.program
    def p(X: T.Tensor((8,), "i32")):
        with T.Kernel(device=2, block=1, threads=128):
            with T.Scale("warp") as (r, n):
                X[r // n * 4 + r % n] = 1
            with T.Scale("device") as (d, _):
                with T.Scale("block"):
                    with T.Scale("warp") as (w, m):
                        X[d * m + w] = X[d * m + w] + w

    x = zeros(8, dtype=np.int32)
    with pytest.raises(
        mt.MegatileError
    ):  # outside a device, T.Scale("warp") counts the warps of one implied block
        mt.run(p, x)


# --- control flow ---------------------------------------------------------------------------------


def test_branches_and_merged_variables() -> None:
    @T.program
    def p(X: T.Tensor((6,), "i32")):
        with T.Kernel(block=6) as b:
            if b < 2:
                v = b * 10
            elif b < 4:
                v = b * 100
            else:
                v = 7
            X[b] = v

    x = zeros(6, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0, 10, 200, 300, 7, 7])


def test_carried_scalars() -> None:
    @T.program
    def p(X: T.Tensor((8,), "i32"), Y: T.Tensor((2,), "i32")):
        with T.Kernel(block=1):
            total, peer = 0, 3
            for k in T.serial(8):
                total = total + X[k]
                peer = (peer + 1) % 5
            Y[0] = total
            Y[1] = peer

    x, y = i32(8), zeros(2, dtype=np.int32)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, [28, (3 + 8) % 5])


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


def test_symbolic_extents() -> None:
    M, N = T.dynamic("M"), T.dynamic("N")

    @T.program
    def p(X: T.Tensor((M, N), "f32"), Y: T.Tensor((N, M), "f32")):
        with T.Kernel(block=(T.ceildiv(N, 4), T.ceildiv(M, 4))) as (bx, by):
            x, y = T.alloc((4, 4), "f32"), T.alloc((4, 4), "f32")
            T.copy(x, X[by * 4, bx * 4])
            for i, j in T.Parallel(4, 4):
                y[j, i] = x[i, j]
            T.copy(Y[bx * 4, by * 4], y)

    for m, n in ((8, 4), (7, 9)):
        x, y = f32(m, n), zeros(n, m)
        mt.run(p, x, y)
        np.testing.assert_array_equal(y, x.T)
    with pytest.raises(ProgramError, match="'M' is 3 in an earlier argument and 5 in 'Y'"):
        mt.run(p, f32(3, 4), zeros(4, 5))


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


# --- memory and layouts ---------------------------------------------------------------------------


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


def test_partial_becomes_whole() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Partial("sum"))
                T.fill(x, r + 1)
                T.allreduce(x)
                y = T.view(Y, layout=T.Partial("max"))
                T.fill(y, r)
                T.reduce_scatter(y, op="max")

    x, y = zeros(8), zeros(8)
    mt.run(p, x, y)
    np.testing.assert_array_equal(x, np.full(8, 10))
    np.testing.assert_array_equal(y, np.full(8, 3))


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


def test_edges() -> None:
    @T.program
    def p(X: T.Tensor((5, 7), "f32"), Y: T.Tensor((5, 7), "f32"), Z: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=(2, 2)) as (bx, by):
            t = T.alloc((4, 4), "f32")
            T.copy(t, X[by * 4, bx * 4])
            T.copy(Y[by * 4, bx * 4], t)
            T.copy(Z[by * 4, bx * 4], t)

    x, y, z = f32(5, 7), zeros(5, 7), np.ones((8, 8), np.float32)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(z, np.pad(x, ((0, 3), (0, 1))))


# --- operations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", "min", "absmax", "abssum"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("clear", [True, False])
def test_reductions(op: str, dim: int, clear: bool) -> None:
    reduce = getattr(T, f"reduce_{op}")

    @T.program
    def p(X: T.Tensor((6, 4), "f32"), Y: T.Tensor((4 if dim == 0 else 6,), "f32")):
        with T.Kernel(block=1):
            x, y = T.alloc(X.shape, "f32"), T.alloc(Y.shape, "f32")
            T.copy(x, X)
            T.copy(y, Y)
            reduce(x, y, dim=dim, clear=clear)
            T.copy(Y, y)

    x, y = f32(6, 4), np.full(4 if dim == 0 else 6, 0.3, np.float32)
    before = y.copy()
    mt.run(p, x, y)
    data = np.abs(x) if op.startswith("abs") else x
    name = op.removeprefix("abs")
    expected = getattr(data, name)(axis=dim)
    if not clear:
        expected = {"sum": np.add, "max": np.maximum, "min": np.minimum}[name](expected, before)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_mathematics() -> None:
    names = [
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tanh",
        "erf",
        "sigmoid",
        "silu",
        "abs",
        "floor",
        "ceil",
    ]

    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((len(names) + 4, 8), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                for row, name in enumerate(names):
                    Y[row, i] = getattr(T, name)(X[i])
                Y[len(names), i] = T.max(X[i], 1.0)
                Y[len(names) + 1, i] = T.clamp(X[i], 0.5, 1.5)
                Y[len(names) + 2, i] = X[i] ** 2 % 1.0 // 0.25
                Y[len(names) + 3, i] = T.if_then_else(
                    X[i] > 1.0, T.cast(T.cast(X[i], "i32"), "f32"), T.min(X[i], 0.1)
                )

    x = np.linspace(0.1, 2.3, 8).astype(np.float32)
    y = zeros(len(names) + 4, 8)
    mt.run(p, x, y)
    from math import erf

    functions = [np.exp, np.exp2, np.log, np.log2, np.sqrt, lambda v: 1 / np.sqrt(v), np.sin, np.cos, np.tanh,
                 np.vectorize(erf), lambda v: 1 / (1 + np.exp(-v)), lambda v: v / (1 + np.exp(-v)),
                 np.abs, np.floor, np.ceil]  # fmt: skip
    expected = [f(x) for f in functions]
    expected += [
        np.maximum(x, 1),
        np.clip(x, 0.5, 1.5),
        x**2 % 1 // 0.25,
        np.where(x > 1, np.trunc(x), np.minimum(x, 0.1)),
    ]
    np.testing.assert_allclose(y, np.array(expected, np.float32), rtol=2e-6)


def test_build_time_mathematics() -> None:
    assert T.ceildiv(7, 2) == 4
    assert T.exp2(3) == 8
    assert T.max(1, 5, 3) == 5
    assert T.infinity("i8") == 127
    assert T.infinity("f16") == float("inf")


NARROW = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


@pytest.mark.parametrize(("dtype", "numpy_type"), NARROW.items())
def test_copy_converts(dtype: str, numpy_type: Any) -> None:
    @T.program
    def p(X: T.Tensor((16,), "f32"), Y: T.Tensor((16,), numpy_type)):
        with T.Kernel(block=1):
            x = T.alloc((16,), "f32")
            T.copy(x, X)
            T.copy(Y, x)

    x = np.abs(f32(16)) * 3
    y = np.zeros(16, numpy_type)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(numpy_type).astype(np.float32))


@pytest.mark.parametrize(("dtype", "kind"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_arithmetic_rounds_as_the_dtype_does(dtype: str, kind: Any) -> None:
    @T.program
    def p(X: T.Tensor((32,), dtype), Y: T.Tensor((32,), dtype), Z: T.Tensor((32,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(32):
                Z[i] = T.cast(X[i] * Y[i] + 0.1, "f32")

    x, y, z = f32(32).astype(kind), f32(32).astype(kind)[::-1].copy(), zeros(32)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(z, (x * y + kind(0.1)).astype(np.float32))
    assert not np.array_equal(z, x.astype(np.float32) * y.astype(np.float32) + np.float32(0.1))


def test_gemm_forms() -> None:
    @T.program
    def p(
        A: T.Tensor((4, 6), "i8"), B: T.Tensor((6, 5), "i8"), C: T.Tensor((4, 5), "i32"),
        D: T.Tensor((6, 4), "f16"), E: T.Tensor((5, 6), "f16"), F: T.Tensor((4, 5), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=1):
            c = T.alloc((4, 5), "i32")
            T.gemm(A, B, c, clear_accum=True)
            T.copy(C, c)
            f = T.alloc((4, 5), "f16")
            T.fill(f, 1.0)
            T.gemm(D, E, f, transpose_A=True, transpose_B=True, policy="FullRow")
            T.copy(F, f)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-100, 100, (4, 6)).astype(np.int8), rng.integers(-100, 100, (6, 5)).astype(np.int8)
    d, e = rng.standard_normal((6, 4)).astype(np.float16), rng.standard_normal((5, 6)).astype(np.float16)
    c, f = zeros(4, 5, dtype=np.int32), zeros(4, 5, dtype=np.float16)
    mt.run(p, a, b, c, d, e, f)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))
    np.testing.assert_array_equal(f, (d.T.astype(np.float32) @ e.T.astype(np.float32) + 1).astype(np.float16))


@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(reverse: bool) -> None:
    @T.program
    def p(X: T.Tensor((3, 5), "f32")):
        with T.Kernel(block=1):
            x = T.alloc((3, 5), "f32")
            T.copy(x, X)
            T.cumsum(x, dim=1, reverse=reverse)
            T.copy(X, x)

    x = f32(3, 5)
    expected = np.cumsum(x[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(x, axis=1)
    mt.run(p, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_atomics() -> None:
    @T.program
    def p(I: T.Tensor((64,), "i32"), H: T.Tensor((4,), "i32"), M: T.Tensor((2,), "f32")):
        with T.Kernel(block=4) as b:
            for i in T.Parallel(16):
                T.atomic_add(H[I[b * 16 + i]], 1)
            T.atomic_max(M[0], T.cast(b, "f32"))
            T.atomic_min(M[1], -T.cast(b, "f32"))

    i = np.random.default_rng(0).integers(0, 4, 64).astype(np.int32)
    h, m = zeros(4, dtype=np.int32), zeros(2)
    mt.run(p, i, h, m)
    np.testing.assert_array_equal(h, np.bincount(i, minlength=4))
    np.testing.assert_array_equal(m, [3, -3])


# --- collectives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("scale", ["device", "block", "warpgroup"])
def test_allreduce_at_every_scale(op: str, scale: str) -> None:
    launch = {"device": 2, "block": 2, "threads": 256}

    @T.program
    def p(X: T.Tensor((8, 4), "f32")):
        with T.Kernel(**launch):
            with T.Scale("device") as (d, _):
                if scale == "device":
                    t = T.alloc((4,), "f32", level="l2")
                    T.copy(t, X[d, :])
                    T.allreduce(t, op=op, algorithm="ring")
                    T.copy(X[d, :], t)
                with T.Scale("block") as (b, _):
                    if scale == "block":
                        u = T.alloc((4,), "f32")
                        T.copy(u, X[2 * d + b, :])
                        T.allreduce(u, op=op)
                        T.copy(X[2 * d + b, :], u)
                    with T.Scale("warpgroup") as (w, _):
                        if scale == "warpgroup":
                            v = T.alloc((4,), "f32")
                            T.copy(v, X[4 * d + 2 * b + w, :])
                            T.allreduce(v, op=op, impl="shared")
                            T.copy(X[4 * d + 2 * b + w, :], v)

    x = f32(8, 4)
    expected = x.copy()
    for pair in range({"device": 1, "block": 2, "warpgroup": 4}[scale]):
        rows = slice(2 * pair, 2 * pair + 2)
        expected[rows] = getattr(x[rows], op)(axis=0)
    mt.run(p, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_allreduce_with_a_function_and_tuples() -> None:
    def argmax(left, right):
        (value_a, index_a), (value_b, index_b) = left, right
        return T.max(value_a, value_b), T.if_then_else(value_b > value_a, index_b, index_a)

    @T.program
    def p(X: T.Tensor((4, 3), "f32"), Y: T.Tensor((3,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                v, i = T.alloc((3,), "f32", level="l2"), T.alloc((3,), "f32", level="l2")
                T.copy(v, X[r, :])
                T.fill(i, r)
                T.allreduce((v, i), fn=argmax)
                if r == 0:
                    T.copy(Y, i)

    x, y = f32(4, 3), zeros(3)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, x.argmax(axis=0))


def test_allgather_reduce_scatter_all_to_all_broadcast() -> None:
    @T.program
    def p(X: T.Tensor((4, 8), "f32"), G: T.Tensor((4, 32), "f32"), S: T.Tensor((4, 2), "f32"),
          A: T.Tensor((4, 8), "f32"), B: T.Tensor((4, 8), "f32")):  # fmt: skip
        with T.Kernel(device=4):
            with T.Scale("device"):
                x, g, s, a, b = (T.view(t, layout=T.FullRow) for t in (X, G, S, A, B))
                T.allgather(g, x)
                T.reduce_scatter(s, x)
                T.all_to_all(a, x, dim=1)
                T.copy(b, x)
                T.broadcast(b, root=2)

    x = f32(4, 8)
    g, s, a, b = zeros(4, 32), zeros(4, 2), zeros(4, 8), zeros(4, 8)
    mt.run(p, x, g, s, a, b)
    np.testing.assert_array_equal(g, np.tile(x.reshape(-1), (4, 1)))
    np.testing.assert_allclose(s.reshape(-1), x.sum(axis=0), rtol=1e-5)
    np.testing.assert_array_equal(a, x.reshape(4, 4, 2).transpose(1, 0, 2).reshape(4, 8))
    np.testing.assert_array_equal(b, np.tile(x[2], (4, 1)))


def test_collectives_of_uneven_shards() -> None:
    @T.program
    def p(X: T.Tensor((5, 3), "f32"), Y: T.Tensor((5, 3), "f32"), Z: T.Tensor((5, 3), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            whole = T.view(Y, layout=T.Replica)
            T.allgather(whole, T.view(X, layout=T.FullRow))
            T.reduce_scatter(T.view(Z, layout=T.FullRow), whole)

    x, y, z = f32(5, 3), zeros(5, 3), zeros(5, 3)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_allclose(z, 4 * x)


def test_allgather_of_a_view() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((2,), "f32")):
        with T.Kernel(block=1, threads=256):
            t = T.alloc((8,), "f32", level="l1")
            with T.Scale("warpgroup") as (w, _):
                mine = T.view(t, layout=T.Shard(0))
                T.copy(mine, X[0])
                whole = T.allgather(mine)
                Y[w] = whole[7 - 7 * w]

    x, y = f32(8), zeros(2)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, x[[7, 0]])


def test_collectives_along_an_axis() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=(2, 4)):
            with T.Scale("device") as r:
                x, y = r.coords
                t, u = T.alloc((1,), "f32", level="l2"), T.alloc((1,), "f32", level="l2")
                T.copy(t, X[r : r + 1])
                T.copy(u, t)
                T.allreduce(t, axis=0)
                T.broadcast(u, root=1, axis=1)
                T.barrier(axis=1)
                T.copy(X[r : r + 1], t)
                T.copy(Y[r : r + 1], u)

    x, y = f32(8), zeros(8)
    start = x.copy().reshape(4, 2)
    mt.run(p, x, y)
    np.testing.assert_allclose(x.reshape(4, 2), np.repeat(start.sum(axis=1, keepdims=True), 2, axis=1))
    np.testing.assert_array_equal(y.reshape(4, 2), np.tile(start[1], (4, 1)))


def test_get_and_signals() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32"), Y: T.Tensor((4, 4), "f32"), Z: T.Tensor((4, 4), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                x, y, z = (T.view(t, layout=T.FullRow) for t in (X, Y, Z))
                t, u = T.alloc((1, 4), "f32", level="l2"), T.alloc((1, 4), "f32", level="l2")
                flag = T.alloc((1,), "i32", level="l2")
                T.copy(t, x)
                T.barrier()
                T.copy(y, t, src=(r + 1) % n)
                T.copy(u, x, dst=(r + 2) % n)
                T.signal(flag, dst=(r + 2) % n)
                T.wait(flag, 1)
                T.copy(z, u)

    for schedule in ("round-robin", "random", "adversarial"):
        x, y, z = f32(4, 4), zeros(4, 4), zeros(4, 4)
        mt.run(p, x, y, z, schedule=schedule, seed=3)
        np.testing.assert_array_equal(y, np.roll(x, -1, axis=0))
        np.testing.assert_array_equal(z, np.roll(x, 2, axis=0))


# --- looking --------------------------------------------------------------------------------------


def test_print_breakpoint_and_record() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=4) as b:
            x = T.alloc((1,), "f32")
            T.fill(x, b * 2)
            T.print("value", x[0], "of", b)
            T.breakpoint(unit=2)
            T.copy(X[b], x)

    lines: list[str] = []
    stops: list[Any] = []
    x = zeros(4)

    def stop(unit: Any) -> None:
        stops.append((unit.rank, unit["x"].tolist(), unit.unit))

    result = mt.run(p, x, record=True, output=lines.append, on_breakpoint=stop)
    assert sorted(lines) == [f"[block {b}] value {2.0 * b} of {b}" for b in range(4)]
    assert stops == [(2, [4.0], "block 2")]
    write = result.last_write("X", 3)
    assert write is not None
    assert write.unit == "block 3"
    assert write.statement.startswith("copy(X[")
    assert write.place is not None and "T.copy(X[b], x)" in (write.place.snippet or "")
    assert write.step > 0
    assert "block 3, step" in str(write)


def test_loop_variables_keep_their_names() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32")):
        with T.Kernel(block=1):
            for step in T.serial(4):
                for row, _ in T.Parallel(4, 4):
                    X[row, step] = 1

    assert "for step in serial" in str(p)
    assert "for row, j in parallel" in str(p)


def test_output_and_record_of_a_run() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as b:
            T.print("here", b)
            T.fill(X[b * 2 : b * 2 + 2], b)

    text = io.StringIO()
    result = mt.run(p, zeros(4), output=text, record=True)
    assert text.getvalue() == "[block 0] here 0\n[block 1] here 1\n"
    assert result.last_write("X", 3) == result.last_write("X", (3,))
    for index, copy, message in (
        ((4,), 0, "'X' has no element \\(4,\\)"),
        ((0, 0), 0, "1 dimensions, 2 indices"),
        ((0,), 1, "has no copy 1"),
    ):
        with pytest.raises(MegatileError, match=message):
            result.last_write("X", *index, copy=copy)
    fixed = zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(MegatileError, match="'X' is written, and its array is read-only.*copy"):
        mt.run(p, fixed)


def test_the_program_as_text() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2, threads=128) as b:
            x = T.alloc((4,), "f32")
            T.copy(x, X[b * 4])
            for i in T.Parallel(4):
                x[i] = x[i] * 2.0 + 1.0
            T.copy(X[b * 4], x)

    assert str(p) == (
        "def p(X: f32[8]):\n"
        '    machine("dgx-h100")\n'
        "    launch(node=implied(1), device=1, cluster=implied(1), cta_pair=implied(1), block=2, "
        'warpgroup=implied(1), warp=implied(4), thread=32, dispatch="block", host="device")\n'
        '    with scale("block"):\n'
        '        x = alloc((4,), "f32", "registers", "block")\n'
        "        copy(x[0::4], X[anchor(block.x * 4, 4)])\n"
        "        for i in parallel(4):\n"
        "            x[i] = x[i] * 2.0 + 1.0\n"
        "        copy(X[anchor(block.x * 4, 4)], x[0::4])\n"
    )


@pytest.mark.parametrize(
    "name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"]
)
def test_torch_tensors_of_every_type(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)

    @T.program
    def p(X: T.Tensor((8,), kind), Y: T.Tensor((8,), kind)):
        with T.Kernel(block=1):
            T.copy(Y, X)

    x, y = torch.arange(8).to(kind), torch.zeros(8).to(kind)
    mt.run(p, x, y)
    assert torch.equal(x.float(), y.float())


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
