"""Programs of further kinds, executed as Plans and simulated: the results are those of the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import megatile as mt
import megatile.language as T

RNG = np.random.default_rng(0)
Case = tuple[Any, list[np.ndarray]]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32).astype(dtype)


def persistent_gemm() -> Case:
    M, N, K, t, blocks = 128, 96, 64, 32, 5

    @T.program
    def kernel(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=blocks, threads=128) as bx:
            a = T.alloc((t, t), "f16", level="l1")
            b = T.alloc((t, t), "f16", level="l1")
            c = T.alloc((t, t), "f32")
            for w in T.serial(T.ceildiv((M // t) * (N // t) - bx, blocks)):
                tile = bx + w * blocks
                T.clear(c)
                for k in T.Pipelined(K // t, num_stages=2):
                    T.copy(a, A[tile // (N // t) * t, k * t])
                    T.copy(b, B[k * t, tile % (N // t) * t])
                    T.gemm(a, b, c)
                T.copy(C[tile // (N // t) * t, tile % (N // t) * t], c)

    return kernel, [normal(M, K, dtype="f2"), normal(K, N, dtype="f2"), np.zeros((M, N), "f4")]


def split_k_with_atomics() -> Case:
    M, N, K, t, parts = 64, 64, 128, 32, 4

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(N // t, M // t, parts), threads=128) as (bx, by, bz):
            a = T.alloc((t, t), "f32", level="l1")
            b = T.alloc((t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            T.clear(c)
            for k in T.serial(K // parts // t):
                T.copy(a, A[by * t, (bz * (K // parts // t) + k) * t])
                T.copy(b, B[(bz * (K // parts // t) + k) * t, bx * t])
                T.gemm(a, b, c)
            T.atomic_add(C[by * t : by * t + t, bx * t : bx * t + t], c)

    return kernel, [normal(M, K), normal(K, N), np.zeros((M, N), "f4")]


def specialised_fp8() -> Case:
    M, N, K, t, slots = 32, 32, 128, 32, 2

    @T.program
    def kernel(A: T.Tensor((M, K), "f8e4m3"), B: T.Tensor((K, N), "f8e4m3"), C: T.Tensor((M, N), "bf16")):
        with T.Kernel(block=1, warpgroup=2):
            a = T.alloc((slots, M, t), "f8e4m3", level="l1")
            b = T.alloc((slots, t, N), "f8e4m3", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((M, N), "f32")
                if wg == 0:
                    for k in T.serial(K // t):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots)
                        T.copy(a[k % slots, 0:M, 0:t], A[0, k * t])
                        T.copy(b[k % slots, 0:t, 0:N], B[k * t, 0])
                        T.signal(full[k % slots], dst=1)
                else:
                    T.clear(c)
                    for k in T.serial(K // t):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[0, 0], c)

    eight = ml_dtypes.float8_e4m3fn
    return kernel, [
        normal(M, K, dtype=eight),
        normal(K, N, dtype=eight),
        np.zeros((M, N), ml_dtypes.bfloat16),
    ]


def paged_decode() -> Case:
    heads, dim, page, pages, most = 4, 16, 8, 12, 5

    @T.program
    def kernel(
        Q: T.Tensor((heads, dim), "f32"), K: T.Tensor((pages, page, dim), "f32"),
        V: T.Tensor((pages, page, dim), "f32"), Table: T.Tensor((most,), "i32"), Used: T.Tensor((1,), "i32"),
        Out: T.Tensor((heads, dim), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=1, threads=32):
            q = T.alloc((heads, dim), "f32", level="l1")
            key = T.alloc((page, dim), "f32", level="l1")
            value = T.alloc((page, dim), "f32", level="l1")
            s = T.alloc((heads, page), "f32")
            out = T.alloc((heads, dim), "f32")
            top = T.alloc((heads,), "f32")
            before = T.alloc((heads,), "f32")
            part = T.alloc((heads,), "f32")
            total = T.alloc((heads,), "f32")
            T.copy(q, Q[0, 0])
            T.clear(out)
            T.clear(total)
            T.fill(top, -T.infinity("f32"))
            used = T.read_scalar(Used[0], bound=most)
            for i in T.serial(used):
                at = T.read_scalar(Table[i], bound=pages - 1)
                T.copy(key, K[at, 0:page, 0:dim])
                T.copy(value, V[at, 0:page, 0:dim])
                T.gemm(q, key, s, transpose_B=True, clear_accum=True)
                T.copy(before, top)
                T.reduce_max(s, top, dim=1, clear=False)
                for h, j in T.Parallel(heads, page):
                    s[h, j] = T.exp(s[h, j] - top[h])
                T.reduce_sum(s, part, dim=1)
                for h in T.Parallel(heads):
                    total[h] = total[h] * T.exp(before[h] - top[h]) + part[h]
                for h, d in T.Parallel(heads, dim):
                    out[h, d] *= T.exp(before[h] - top[h])
                T.gemm(s, value, out)
            for h, d in T.Parallel(heads, dim):
                out[h, d] /= total[h]
            T.copy(Out[0, 0], out)

    table, used = np.array([7, 2, 11, 0, 0], "i4"), np.array([3], "i4")
    data = [normal(heads, dim), normal(pages, page, dim), normal(pages, page, dim)]
    return kernel, [*data, table, used, np.zeros((heads, dim), "f4")]


def histogram_of_threads() -> Case:
    n, bins = 200, 7

    @T.program
    def kernel(X: T.Tensor((n,), "i32"), H: T.Tensor((bins,), "i32")):
        with T.Kernel(block=4, threads=64) as bx, T.Scale("thread") as (t, _):
            at = bx * 64 + t
            if at < n:
                T.atomic_add(H[X[at] % bins], 1)

    return kernel, [RNG.integers(0, 1000, n).astype("i4"), np.zeros(bins, "i4")]


def tiles_put_by_blocks() -> Case:
    """Every device's blocks work on rows that the device before has put into its memory."""
    devices, rows, n = 4, 32, 48

    @T.program
    def kernel(A: T.Tensor((devices * rows, n), "f32"), B: T.Tensor((devices * rows, n), "f32")):
        with T.Kernel(device=devices, block=2, threads=64) as bx, T.Scale("device") as (r, size):
            mine = T.view(A, layout=T.FullRow)
            out = T.view(B, layout=T.FullRow)
            inbox = T.alloc((rows, n), "f32", level="l2")
            ready = T.alloc((1,), "i32", level="l2")
            T.copy(inbox, mine, dst=(r + 1) % size)
            T.signal(ready[0], dst=(r + 1) % size)
            T.wait(ready[0], 1)
            with T.Scale("block"):
                x = T.alloc((rows // 2, n), "f32")
                T.copy(x, inbox[bx * (rows // 2), 0])
                for i, j in T.Parallel(rows // 2, n):
                    x[i, j] = x[i, j] * 2.0
                T.copy(out[bx * (rows // 2), 0], x)

    return kernel, [normal(devices * rows, n), np.zeros((devices * rows, n), "f4")]


KINDS: list[Callable[[], Case]] = [
    persistent_gemm, split_k_with_atomics, specialised_fp8, paged_decode, histogram_of_threads,
    tiles_put_by_blocks,
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("machine", ["dgx-h100", "mi300x-8"])
def test_a_kind(kind: Callable[[], Case], machine: str) -> None:
    prog, arrays = kind()
    wanted = [a.copy() for a in arrays]
    mt.run(prog, *wanted, machine=machine)
    result = mt.simulate(prog, *arrays, machine=machine)
    assert result.time_ps > 0
    params = list(prog.tensors)
    for name, got in result.outputs.items():
        after = wanted[params.index(name)]
        np.testing.assert_allclose(got.astype("f8"), after.astype("f8"), rtol=1e-2, atol=1e-3, err_msg=name)
    assert set(result.outputs) >= {params[-1]}
