"""``T.alloc_var`` and local tiles of one element in ``T.Parallel``: numbers of the iteration."""

import numpy as np
import pytest

import megatile as mt
import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.core.errors import MegatileError


@tilelang.jit
def twice(A):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 64), threads=32) as b:
        x = T.alloc_var(T.int32)
        y = T.alloc_local((1,), T.float16)
        for i in T.Parallel(64):
            x = b * 64 + i
            y[0] = A[x]
            x = x * 3
            if i % 2 == 0:
                B[b * 64 + i] = y[0]
            else:
                B[b * 64 + i] = x
    return B


def test_a_number_that_each_iteration_sets_first_is_its_own():
    a, i = np.random.default_rng(0).random(128).astype("f4"), np.arange(128)
    wanted = np.where(i % 2 == 0, a.astype("f2").astype("f4"), 3 * i)
    np.testing.assert_array_equal(twice(a), wanted)
    program = twice.compile(N=128).program
    b = np.empty_like(a)
    mt.compile(program, target="cuda")(a, b)
    np.testing.assert_array_equal(b, wanted)


@tilelang.jit
def sums(A):
    N = T.const("N")
    A: T.Tensor((N, 8), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=64):
        x = T.alloc_var(T.float32)
        for i in T.Parallel(N):
            x = 0
            for j in T.serial(8):
                if A[i, j] > 0.25:
                    x = x + A[i, j]
            B[i] = x
    return B


def test_it_changes_in_loops_and_under_conditions():
    a = np.random.default_rng(0).random((64, 8)).astype("f4")
    wanted = np.where(a > 0.25, a, 0).sum(1)
    np.testing.assert_allclose(sums(a), wanted, rtol=1e-6)
    b = np.empty_like(wanted)
    mt.compile(sums.compile(N=64).program, target="cuda")(a, b)
    np.testing.assert_allclose(b, wanted, rtol=1e-6)


@pytest.mark.parametrize("mistake", ["read before", "set under a condition only", "read after"])
def test_a_number_that_iterations_share_is_refused(mistake):
    @tilelang.jit
    def shared(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(1, threads=32):
            x = T.alloc_var(T.int32)
            for i in T.Parallel(N):
                if mistake == "read before":
                    B[i] = x
                if mistake == "set under a condition only":
                    if A[i] > 0:
                        x = 7
                else:
                    x = i
                B[i] = x
            if mistake == "read after":
                B[0] = x
        return B

    with pytest.raises(MegatileError, match=r"several iterations of T\.Parallel write"):
        shared(np.ones(64, "f4"))
