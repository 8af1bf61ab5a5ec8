"""Mistakes that TileLang refuses are refused here, too; schedulers, dp4a, functions without a launch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.compat.tilelang.launch import LAYOUTS
from megatile.core.errors import MegatileError


def refused(statement: Any, kind: type[Exception] = MegatileError, match: str = "") -> None:
    """Reading a kernel with this statement is an error."""
    with pytest.raises(kind, match=match):

        @T.prim_func
        def main(A: T.Tensor((64,), T.float32), B: T.Tensor((64,), T.int16)):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((64,), T.float32)
                T.copy(A, s)
                statement(A, B, s)
                T.copy(s, A)


def reducer(batch: int) -> Any:
    def statement(A: Any, *_: Any) -> None:
        r = T.alloc_reducer((64,), T.float32)
        T.clear(r)
        T.finalize_reducer(r, batch=batch)

    return statement


@pytest.mark.parametrize(("batch", "match"), [(0, ">= 1"), (128, "exceeds total"), (3, "evenly divide")])
def test_batches_of_reducers(batch: int, match: str) -> None:
    refused(reducer(batch), ValueError, match)


def test_copies_atomics_variables_and_loops() -> None:
    refused(lambda A, B, s: T.async_copy(s, A), match="only supports global->shared")
    refused(lambda A, B, s: T.atomic_add(B, B, use_tma=True), match="does not support dtype int16")
    refused(lambda A, B, s: T.alloc_var(T.float32, init=1e300), ValueError, "exceeds maximum of float32")
    refused(lambda A, B, s: T.Pipelined(2, order=[0, 0]), match="same order")
    refused(lambda A, B, s: T.dp4a(A, A, A), ValueError, "dp4a requires int8 inputs")


def test_layouts_of_shared_tiles_give_each_element_a_place() -> None:
    layout = LAYOUTS["Layout"]
    refused(
        lambda A, B, s: T.annotate_layout({s: layout((64,), lambda i: i % 32)}),
        ValueError,
        r"\(0,\) and \(32,\) both map",
    )

    @T.prim_func
    def main(A: T.Tensor((64,), T.float32)):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64,), T.float32)
            T.annotate_layout({s: layout((64,), lambda i: i ^ 1)})
            T.copy(A, s)
            T.copy(s, A)


def test_assumptions_on_extents_are_checked() -> None:
    N = T.dynamic("N")

    @T.prim_func
    def main(A: T.Tensor((N,), T.float32)):
        with T.Kernel(1, threads=32):
            T.assume(N % 4 == 0)
            T.fill(A, 1.0)

    kernel = tilelang.compile(main)
    kernel(np.zeros(8, np.float32))
    with pytest.raises(RuntimeError, match="Assume: N % 4 == 0"):
        kernel(np.zeros(6, np.float32))


@pytest.mark.parametrize(("swizzle", "column_major"), [(1, True), (2, True), (3, False)])
def test_schedulers_visit_each_tile_once(swizzle: int, column_major: bool) -> None:
    @T.prim_func
    def main(A: T.Tensor((5, 4), T.int32), B: T.Tensor((5, 4), T.int32)):
        with T.Kernel(3, threads=1) as worker:
            sched = T.PersistentTileScheduler(5, 4, 3, swizzle, column_major)
            sched.init(worker)
            while sched.valid():
                A[sched.m_idx, sched.n_idx] = sched.linear_idx + 1
                B[sched.m_idx, sched.n_idx] = sched.current_iter
                sched.next_tile()

    a, b = np.zeros((5, 4), np.int32), np.zeros((5, 4), np.int32)
    tilelang.compile(main)(a, b)
    assert sorted(a.flat) == list(range(1, 21))
    np.testing.assert_array_equal(b, (a - 1) // 3)
    if swizzle == 1:
        np.testing.assert_array_equal(a, np.arange(1, 21).reshape(4, 5).T)


def test_a_function_without_a_launch_runs_on_one_thread() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), T.int8), B: T.Tensor((8,), T.int8), C: T.Tensor((2,), T.int32)):
        for i in T.serial(2):
            T.dp4a(A[4 * i], B[4 * i], C[i])

    a, b = np.arange(8, dtype=np.int8) - 4, np.arange(8, dtype=np.int8)
    c = np.ones(2, np.int32)
    tilelang.compile(main)(a, b, c)
    products = (a.astype(int) * b).reshape(2, 4).sum(1) + 1
    np.testing.assert_array_equal(c, products)


def test_a_buffer_before_the_launches_is_global() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32)):
        parts = T.alloc_buffer((2, 8), T.float32)
        with T.Kernel(2, threads=32) as b:
            T.fill(parts[b, 0:8], 1.0 + b)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = parts[0, i] + parts[1, i]

    a = np.zeros(8, np.float32)
    tilelang.compile(main)(a)
    assert (a == 3).all()


def test_variables_of_iterations() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), T.float32), B: T.Tensor((8,), T.float32)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                sign = T.alloc_var(T.float32)
                if A[i] > 0:
                    sign = 1.0
                else:
                    sign = -1.0
                B[i] = sign * 2

    a, b = np.array([1, -1, 2, -2, 3, -3, 0, 4], np.float32), np.zeros(8, np.float32)
    tilelang.compile(main)(a, b)
    np.testing.assert_array_equal(b, np.where(a > 0, 2, -2))


def test_reading_a_kernel_keeps_nothing_of_its_callers() -> None:
    class Data:
        pass

    def read() -> Any:
        held = Data()

        @T.prim_func
        def main(A: T.Tensor((4,), T.float32)):
            with T.Kernel(1, threads=32):
                T.fill(A, 0.0)

        return weakref.ref(held)

    gc.disable()
    try:
        assert read()() is None
    finally:
        gc.enable()


def test_a_function_that_only_allocates_is_a_kernel() -> None:
    @T.prim_func
    def main():
        T.alloc_buffer((1,), dtype=T.bool, scope="shared")
        T.alloc_buffer((1,), dtype=T.float8_e5m2fnuz, scope="shared")

    assert "alloc" in main.script()
