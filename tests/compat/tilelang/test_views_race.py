"""Races on elements that a kernel reads under two shapes, and on tiles of a cluster."""

import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.core.errors import MegatileError


def through_a_view(first: int, dtype):
    """Block 0 reads row 0 of A; block 1 writes from ``first`` on, by flat numbers."""

    @T.prim_func
    def kernel(A: T.Tensor((4, 8), T.float32), O: T.Tensor((8,), T.float32)):
        with T.Kernel(2, threads=32) as bx:
            s = T.alloc_shared((8,), T.float32)
            w = T.alloc_shared((8,), dtype)
            V = T.view(A, (32,), dtype)
            if bx == 0:
                T.copy(A[0, 0:8], s)
                T.copy(s, O)
            else:
                T.fill(w, 1)
                T.copy(w, V[first : first + 8])

    return kernel


@pytest.mark.parametrize("dtype", [T.float32, T.int32])
def test_a_race_through_another_shape_is_found(dtype) -> None:
    arrays = np.zeros((4, 8), np.float32), np.zeros(8, np.float32)
    tilelang.compile(through_a_view(8, dtype))(*arrays)
    with pytest.raises(MegatileError, match="data race"):
        tilelang.compile(through_a_view(7, dtype))(*arrays)


def shifted(waits: bool):
    @T.prim_func
    def kernel(A: T.Tensor((4, 16), T.float32), O: T.Tensor((4, 16), T.float32)):
        with T.Kernel(4, threads=32, cluster_dims=(2, 1, 1)) as bx:
            mine = T.alloc_shared((16,), T.float32)
            other = T.alloc_shared((16,), T.float32)
            T.copy(A[bx, 0], mine)
            T.copy_cluster(mine, other, dst_block=1 - T.block_rank_in_cluster())
            if waits:
                T.cluster_sync()
            T.copy(other, O[bx, 0])

    return kernel


def test_blocks_of_a_cluster_exchange_tiles() -> None:
    a = np.arange(64, dtype=np.float32).reshape(4, 16)
    o = np.zeros_like(a)
    tilelang.compile(shifted(True))(a, o)
    assert (o == a[[1, 0, 3, 2]]).all()
    with pytest.raises(MegatileError):
        tilelang.compile(shifted(False))(a, o)


def test_warps_reduce_and_copies_stand_in_elementwise_code() -> None:
    @T.prim_func
    def kernel(X: T.Tensor((128,), T.float32), S: T.Tensor((128,), T.float32), M: T.Tensor((128,), T.float32),
               Rows: T.Tensor((4,), T.int32), A: T.Tensor((8, 16), T.float32),
               B: T.Tensor((4, 16), T.float32), E: T.Tensor((128,), T.float32)):  # fmt: skip
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            S[t] = T.warp_reduce_sum(X[t])
            M[t] = T.warp_reduce_max(X[t])
            for i in T.Parallel(4):
                T.copy(A[Rows[i], 0:16], B[i, 0:16])
            for i in T.Parallel(128):
                E[i] = getattr(T, "__exp")(X[i])

    rng = np.random.default_rng(0)
    x, a = rng.random(128, np.float32), rng.random((8, 16), np.float32)
    s, m, b, e = np.zeros_like(x), np.zeros_like(x), np.zeros((4, 16), np.float32), np.zeros_like(x)
    rows = np.array([5, 0, 7, 5], np.int32)
    tilelang.compile(kernel)(x, s, m, rows, a, b, e)
    np.testing.assert_allclose(s, x.reshape(4, 32).sum(1).repeat(32), rtol=1e-5)
    assert (m == x.reshape(4, 32).max(1).repeat(32)).all()
    assert (b == a[rows]).all()
    np.testing.assert_allclose(e, np.exp(x), rtol=1e-6)


def test_conditions_over_regions_and_reductions_without_nan() -> None:
    @T.prim_func
    def kernel(M: T.Tensor((4, 3), T.bool), O: T.Tensor((4, 2), T.int32), X: T.Tensor((8,), T.float32),
               R: T.Tensor((2,), T.float32)):  # fmt: skip
        with T.Kernel(4, threads=32) as b:
            if T.any_of(M[b, :]):
                O[b, 0] = 1
            if T.all_of(M[b, :]):
                O[b, 1] = 1
            x = T.alloc_fragment((8,), T.float32)
            top = T.alloc_fragment((1,), T.float32)
            T.copy(X, x)
            if b == 0:
                T.reduce_max(x, top, nan_propagate=False)
                R[0] = top[0]
                T.reduce_max(x, top)
                R[1] = top[0]

    m = np.array([[0, 0, 0], [0, 1, 0], [1, 1, 1], [1, 1, 0]], bool)
    o, r = np.zeros((4, 2), np.int32), np.zeros(2, np.float32)
    x = np.array([1, np.nan, 3, 2, 0, -1, np.nan, 2], np.float32)
    tilelang.compile(kernel)(m, o, x, r)
    assert (o == np.stack([m.any(1), m.all(1)], 1)).all()
    assert r[0] == 3
    assert np.isnan(r[1])


def test_the_last_two_dimensions_are_transposed() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((2, 3, 4), T.float32), B: T.Tensor((2, 4, 3), T.float32)):
        with T.Kernel(1, threads=32):
            T.transpose(A, B)

    a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    b = np.zeros((2, 4, 3), np.float32)
    tilelang.compile(kernel)(a, b)
    assert (b == a.transpose(0, 2, 1)).all()
