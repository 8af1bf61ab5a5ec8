"""Votes, shuffles and reducers of TileLang's spelling."""

from __future__ import annotations

import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.language.tile.errors import ProgramError

THREAD = np.arange(64)


def of_threads(value):
    """What each of 64 threads gets."""

    @T.prim_func
    def kernel(B: T.Tensor((64,), T.int64)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            B[tx] = T.cast(value(tx), T.int64)

    return np.asarray(tilelang.compile(kernel, out_idx=-1)())


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (lambda tx: T.any_sync(tx == 0), THREAD < 32),
        (lambda tx: T.all_sync(tx < 32), THREAD < 32),
        (lambda tx: T.ballot_sync(tx % 32 < 3), 7),
        (lambda tx: T.ballot_sync(1, 0xF0), 0xF0),
        (lambda tx: T.syncthreads_count(tx < 16), 16),
        (lambda tx: T.syncthreads_count(1), 64),
        (lambda tx: T.syncthreads_and(tx != 5), 0),
        (lambda tx: T.syncthreads_or(tx == 5), 1),
        (lambda tx: T.match_any_sync(tx // 16), np.where(THREAD % 32 < 16, 0xFFFF, 0xFFFF0000)),
        (lambda tx: T.match_all_sync(tx // 32), 0xFFFFFFFF),
        (lambda tx: T.shfl_sync(tx * 10, 31), np.where(THREAD < 32, 310, 630)),
        (lambda tx: T.shfl_down(tx, 1), np.where(THREAD % 32 == 31, THREAD, THREAD + 1)),
        (lambda tx: T.shfl_up(tx, 1), np.where(THREAD % 32 == 0, THREAD, THREAD - 1)),
        (lambda tx: T.shfl_xor(tx, 3), THREAD ^ 3),
        (lambda tx: T.get_warp_idx() * 100 + T.get_lane_idx(), THREAD // 32 * 100 + THREAD % 32),
        (lambda tx: getattr(T, "__ffs")(T.ballot(tx >= 7)), np.where(THREAD < 32, 8, 1)),
    ],
)
def test_threads_of_a_warp_tell_each_other(value, wanted):
    np.testing.assert_array_equal(of_threads(value), np.broadcast_to(wanted, 64))


def test_a_vote_needs_a_condition():
    with pytest.raises(TypeError, match="requires an integer or boolean predicate"):
        of_threads(lambda tx: T.any_sync(T.cast(tx, T.float32)))


def reducer_kernel(op, statements, dtype=T.int32):
    """A kernel that reduces the rows of a matrix; ``statements`` may leave some out."""

    @T.prim_func
    def kernel(A: T.Tensor((4, 8), dtype), B: T.Tensor((4,), dtype)):
        with T.Kernel(1, threads=32):
            acc = T.alloc_reducer((4,), dtype, op=op)
            if "init" in statements:
                T.reducer_init(acc)
            if "twice" in statements:
                T.reducer_init(acc)
            for i, j in T.Parallel(4, 8):
                T.reducer_update(acc[i], A[i, j])
            if "alone" in statements:
                T.reducer_update(acc[0], 1)
            if "read" in statements:
                B[0] = acc[0]
            result = T.alloc_fragment((4,), dtype)
            if "finalize" in statements:
                T.finalize_reducer(acc, result)
                T.copy(result, B)

    return tilelang.compile(kernel, out_idx=-1)


@pytest.mark.parametrize(
    ("op", "numpy"),
    [("sum", np.add), ("max", np.maximum), ("bitand", np.bitwise_and), ("bitxor", np.bitwise_xor)],
)
def test_reducers(op, numpy):
    a = np.random.default_rng(0).integers(-50, 50, (4, 8)).astype("i4")
    np.testing.assert_array_equal(reducer_kernel(op, "init finalize")(a), numpy.reduce(a, axis=1))


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("finalize", "before T.reducer_init"),
        ("init", "never finalized"),
        ("init twice finalize", "double T.reducer_init"),
        ("init alone finalize", "outside any T.Parallel"),
        ("init read finalize", "illegal read of reducer"),
    ],
)
def test_reducers_are_begun_and_finalized_once(statements, message):
    with pytest.raises(ProgramError, match=message):
        reducer_kernel("sum", statements)
