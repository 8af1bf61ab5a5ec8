"""Short vectors, strides, atomics of each thread, and values that are read before they are assigned."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language
import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.language.tile.errors import ProgramError


@tilelang.jit
def moved_by_words(X, Y):
    N = T.const("N")
    X: T.Tensor[[N], T.float32]
    Y: T.Tensor[[N], T.float32]
    with T.Kernel(N // 4, threads=32) as pid:
        four = T.reinterpret(T.ldg128(X[pid * 4 : pid * 4 + 4]), T.float32x4)
        T.stg128(Y[pid * 4], four * 2.0 + T.Broadcast(1.0, 4))


def test_vectors_are_loaded_changed_and_stored():
    x, y = np.arange(16, dtype="f4"), np.zeros(16, "f4")
    moved_by_words(x, y)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_a_ramp_counts_negative_places_from_the_end():
    @T.prim_func
    def kernel(A: T.Tensor((8,), T.float32), B: T.Tensor((2, 4), T.float32)):
        with T.Kernel(1, threads=1):
            for t in T.serial(2):
                B[t, T.Ramp(0, 1, 4)] = A[T.Ramp(t - 1, 1, 4)]

    a = np.arange(8, dtype="f4")
    np.testing.assert_array_equal(tilelang.compile(kernel, out_idx=-1)(a), [[7, 0, 1, 2], [0, 1, 2, 3]])


def test_types_of_vectors():
    assert (T.float32x4.lanes, T.float32x4.bits, T.float32x4.element) == (4, 128, "float32")
    assert repr(T.extract_lane(T.int32x2(3, 5), 1)) == 'cast(5, "i32")'
    with pytest.raises(ProgramError, match="out of bounds"):
        T.extract_lane(T.int32x2(3, 5), 2)


@tilelang.jit
def doubled_rows(X):
    m, s = T.dynamic("m"), T.dynamic("s")
    X: T.StridedTensor[[m, 4], [s, 1], T.float32]
    with T.Kernel(m, threads=32) as i:
        for j in T.Parallel(4):
            X[i, j] = X[i, j] * 2


def test_strided_tensors_are_changed_in_place():
    base = np.arange(32, dtype="f4").reshape(8, 4)
    wanted = base.copy()
    wanted[::2] *= 2
    doubled_rows(base[::2])
    np.testing.assert_array_equal(base, wanted)


def test_strides_must_be_the_declared_ones():
    @T.prim_func
    def kernel(X: T.StridedTensor((4, 4), (8, 1), T.float32)):
        with T.Kernel(1, threads=32):
            X[0, 0] = 1.0

    with pytest.raises(ProgramError, match="stride 0 of 'X' is 4, but 8 is declared"):
        tilelang.compile(kernel)(np.zeros((4, 4), "f4"))


def test_every_thread_of_a_block_does_an_atomic():
    @T.prim_func
    def kernel(A: T.Tensor((1,), T.int32), B: T.Tensor((64,), T.int32)):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            old = T.atomic_add(A[0], 2, return_prev=True)
            B[tx] = old

    count, old = np.zeros(1, "i4"), np.zeros(64, "i4")
    tilelang.compile(kernel)(count, old)
    assert count[0] == 128 and sorted(old) == list(range(0, 128, 2))


def test_two_elements_are_swapped():
    @megatile.language.program
    def swap(A: megatile.language.Tensor((2,), "f32")):
        with megatile.language.Kernel(block=1):
            A[0], A[1] = A[1], A[0]

    a = np.array([1, 2], "f4")
    mt.run(swap, a)
    np.testing.assert_array_equal(a, [2, 1])


def test_two_variables_are_swapped():
    @T.prim_func
    def swap(A: T.Tensor((2,), T.float32)):
        with T.Kernel(1, threads=1):
            a = T.alloc_var(T.float32, A[0])
            b = T.alloc_var(T.float32, A[1])
            a, b = b, a
            A[0], A[1] = a, b

    x = np.array([1, 2], "f4")
    tilelang.compile(swap)(x)
    np.testing.assert_array_equal(x, [2, 1])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_greatest_so_far(reverse):
    @T.prim_func
    def kernel(A: T.Tensor((4, 8), T.float32), B: T.Tensor((4, 8), T.float32)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((4, 8), T.float32)
            T.copy(A, tile)
            T.cummax(tile, dim=1, reverse=reverse)
            T.copy(tile, B)

    a = np.random.default_rng(0).standard_normal((4, 8)).astype("f4")
    wanted = (
        np.maximum.accumulate(a[:, ::-1], axis=1)[:, ::-1] if reverse else np.maximum.accumulate(a, axis=1)
    )
    np.testing.assert_array_equal(tilelang.compile(kernel, out_idx=-1)(a), wanted)


@tilelang.jit
def numbered(n: int):
    out = T.empty((8,), T.int32)
    with T.Scale("block", 4) as bx:
        with T.Scale("thread", 2) as tid:
            out[bx * 2 + tid] = bx * 10 + tid + n
    return out


def test_levels_are_the_launch_of_a_jit_function():
    np.testing.assert_array_equal(np.asarray(numbered(1)), [1, 2, 11, 12, 21, 22, 31, 32])
