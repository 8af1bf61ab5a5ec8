"""Programs of every kind on every machine, executed as Plans and simulated: results are the interpreter's.

``larger`` makes a kind with more blocks (or more devices): the text of its Plan stays as long as it was.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.lowering.machines import user_machine

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError

RNG = np.random.default_rng(0)
Case = tuple[Any, list[np.ndarray]]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32).astype(dtype)


def persistent_gemm(larger: int = 1) -> Case:
    M, N, K, t, blocks = 128 * larger, 96, 64, 32, 5 * larger

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


def split_k_with_atomics(larger: int = 1) -> Case:
    M, N, K, t, parts = 64 * larger, 64, 128, 32, 4

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


def specialised_fp8(larger: int = 1) -> Case:
    M, N, K, t, slots = 32, 32 * larger, 128, 32, 2

    @T.program
    def kernel(A: T.Tensor((M, K), "f8e4m3"), B: T.Tensor((K, N), "f8e4m3"), C: T.Tensor((M, N), "bf16")):
        with T.Kernel(block=larger, warpgroup=2) as bx:
            a = T.alloc((slots, M, t), "f8e4m3", level="l1")
            b = T.alloc((slots, t, t), "f8e4m3", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((M, t), "f32")
                if wg == 0:
                    for k in T.serial(K // t):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots)
                        T.copy(a[k % slots, 0:M, 0:t], A[0, k * t])
                        T.copy(b[k % slots, 0:t, 0:t], B[k * t, bx * t])
                        T.signal(full[k % slots], dst=1)
                else:
                    T.clear(c)
                    for k in T.serial(K // t):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[0, bx * t], c)

    eight = ml_dtypes.float8_e4m3fn
    return kernel, [
        normal(M, K, dtype=eight),
        normal(K, N, dtype=eight),
        np.zeros((M, N), ml_dtypes.bfloat16),
    ]


def paged_decode(larger: int = 1) -> Case:
    requests, heads, dim, page, pages, most = 2 * larger, 4, 16, 8, 12, 5

    @T.program
    def kernel(
        Q: T.Tensor((requests, heads, dim), "f32"), K: T.Tensor((pages, page, dim), "f32"),
        V: T.Tensor((pages, page, dim), "f32"), Table: T.Tensor((requests, most), "i32"),
        Used: T.Tensor((requests,), "i32"), Out: T.Tensor((requests, heads, dim), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=requests, threads=32) as r:
            q = T.alloc((heads, dim), "f32", level="l1")
            key = T.alloc((page, dim), "f32", level="l1")
            value = T.alloc((page, dim), "f32", level="l1")
            s = T.alloc((heads, page), "f32")
            out = T.alloc((heads, dim), "f32")
            top = T.alloc((heads,), "f32")
            before = T.alloc((heads,), "f32")
            part = T.alloc((heads,), "f32")
            total = T.alloc((heads,), "f32")
            T.copy(q, Q[r, 0:heads, 0:dim])
            T.clear(out)
            T.clear(total)
            T.fill(top, -T.infinity("f32"))
            used = T.read_scalar(Used[r], bound=most)
            for i in T.serial(used):
                at = T.read_scalar(Table[r, i], bound=pages - 1)
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
            T.copy(Out[r, 0:heads, 0:dim], out)

    table = RNG.integers(0, pages, (requests, most)).astype("i4")
    used = RNG.integers(1, most + 1, requests).astype("i4")
    data = [normal(requests, heads, dim), normal(pages, page, dim), normal(pages, page, dim)]
    return kernel, [*data, table, used, np.zeros((requests, heads, dim), "f4")]


def histogram_of_threads(larger: int = 1) -> Case:
    n, bins = 200 * larger, 7

    @T.program
    def kernel(X: T.Tensor((n,), "i32"), H: T.Tensor((bins,), "i32")):
        with T.Kernel(block=4 * larger, threads=64) as bx, T.Scale("thread") as (t, _):
            at = bx * 64 + t
            if at < n:
                T.atomic_add(H[X[at] % bins], 1)

    return kernel, [RNG.integers(0, 1000, n).astype("i4"), np.zeros(bins, "i4")]


def tiles_put_by_blocks(larger: int = 1) -> Case:
    """Every device's blocks work on rows that the device before has put into its memory."""
    devices, blocks, rows, n = 4, 2 * larger, 32 * larger, 48

    @T.program
    def kernel(A: T.Tensor((devices * rows, n), "f32"), B: T.Tensor((devices * rows, n), "f32")):
        with T.Kernel(device=devices, block=blocks, threads=64) as bx, T.Scale("device") as (r, size):
            mine = T.view(A, layout=T.FullRow)
            out = T.view(B, layout=T.FullRow)
            inbox = T.alloc((rows, n), "f32", level="l2")
            ready = T.alloc((1,), "i32", level="l2")
            T.copy(inbox, mine, dst=(r + 1) % size)
            T.signal(ready[0], dst=(r + 1) % size)
            T.wait(ready[0], 1)
            with T.Scale("block"):
                x = T.alloc((16, n), "f32")
                T.copy(x, inbox[bx * (16), 0])
                for i, j in T.Parallel(16, n):
                    x[i, j] = x[i, j] * 2.0
                T.copy(out[bx * (16), 0], x)

    return kernel, [normal(devices * rows, n), np.zeros((devices * rows, n), "f4")]


def causal_ring_attention(larger: int = 1) -> Case:
    """Keys and values of fewer heads go round; queries see what is not after them."""
    heads, groups, dim, devices, bM = 4, 2, 16, 4, 8
    rows = 16 * larger
    seq = devices * rows

    @T.program
    def kernel(
        Q: T.Tensor((heads, seq, dim), "f32"), K: T.Tensor((groups, seq, dim), "f32"),
        V: T.Tensor((groups, seq, dim), "f32"), Out: T.Tensor((heads, seq, dim), "f32"),
    ):  # fmt: skip
        with (
            T.Kernel(device=devices, block=(rows // bM, heads), threads=64) as (bx, by),
            T.Scale("device") as (r, n),
        ):
            q_, k_, v_, o_ = (T.view(X, layout=T.Shard(1)) for X in (Q, K, V, Out))
            keys = T.alloc((2, groups, rows, dim), "f32", level="l2")
            values = T.alloc((2, groups, rows, dim), "f32", level="l2")
            top = T.alloc((heads, rows), "f32", level="l2")
            total = T.alloc((heads, rows), "f32", level="l2")
            T.copy(keys[0], k_)
            T.copy(values[0], v_)
            T.fill(top, -T.infinity("f32"))
            T.clear(total)
            T.fill(o_, 0)
            T.barrier()
            for s in T.serial(n):
                owner = (r - s) % n
                if s < n - 1:
                    T.copy(keys[(s + 1) % 2], keys[s % 2], dst=(r + 1) % n)
                    T.copy(values[(s + 1) % 2], values[s % 2], dst=(r + 1) % n)
                with T.Scale("block"):
                    q = T.alloc((bM, dim), "f32", level="l1")
                    k = T.alloc((rows, dim), "f32", level="l1")
                    v = T.alloc((rows, dim), "f32", level="l1")
                    score = T.alloc((bM, rows), "f32")
                    out = T.alloc((bM, dim), "f32")
                    before = T.alloc((bM,), "f32")
                    now = T.alloc((bM,), "f32")
                    part = T.alloc((bM,), "f32")
                    add = T.alloc((bM,), "f32")
                    T.copy(q, q_[by, bx * bM, 0])
                    T.copy(k, keys[s % 2, by // (heads // groups), 0, 0])
                    T.copy(v, values[s % 2, by // (heads // groups), 0, 0])
                    T.copy(out, o_[by, bx * bM, 0])
                    T.copy(before, top[by, bx * bM])
                    T.copy(part, total[by, bx * bM])
                    T.gemm(q, k, score, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(bM, rows):
                        seen = owner * rows + j <= r * rows + bx * bM + i
                        score[i, j] = T.if_then_else(seen, score[i, j], -T.infinity("f32"))
                    T.copy(now, before)
                    T.reduce_max(score, now, dim=1, clear=False)
                    for i, j in T.Parallel(bM, rows):
                        score[i, j] = T.exp(score[i, j] - now[i])
                    T.reduce_sum(score, add, dim=1)
                    for i in T.Parallel(bM):
                        part[i] = part[i] * T.exp(before[i] - now[i]) + add[i]
                    for i, j in T.Parallel(bM, dim):
                        out[i, j] *= T.exp(before[i] - now[i])
                    T.gemm(score, v, out)
                    T.copy(o_[by, bx * bM, 0], out)
                    T.copy(top[by, bx * bM], now)
                    T.copy(total[by, bx * bM], part)
                T.barrier()
            for h, i, j in T.Parallel(heads, rows, dim):
                o_[h, i, j] /= total[h, i]

    data = [normal(h, seq, dim) for h in (heads, groups, groups)]
    return kernel, [*data, np.zeros((heads, seq, dim), "f4")]


def cluster_multicast(larger: int = 1) -> Case:
    """One block of every cluster loads a tile of B, and all of them have it."""
    clusters, M, N, K = 2 * larger, 32, 64 * larger, 48

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with (
            T.Kernel(cluster=clusters, block=2, threads=64),
            T.Scale("cluster") as cx,
            T.Scale("block") as (b, _),
        ):
            a = T.alloc((M // 2, K), "f32", level="l1")
            shared = T.alloc((K, 32), "f32", level="l1")
            c = T.alloc((M // 2, 32), "f32")
            T.copy(a, A[b * (M // 2), 0])
            T.clear(shared)
            if b == 0:
                T.copy(shared, B[0, cx * 32])
            T.broadcast(shared, root=0)
            T.gemm(a, shared, c, clear_accum=True)
            T.copy(C[b * (M // 2), cx * 32], c)

    return kernel, [normal(M, K), normal(K, N), np.zeros((M, N), "f4")]


def summa_of_cores(larger: int = 1) -> Case:
    """Broadcasts along the rows and columns of a grid of cores."""
    p, t = 2 * larger, 8
    n = p * t

    @T.program
    def kernel(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(p, p), threads=32) as (x, y):
            a = T.alloc((t, t), "f32", level="l1")
            b = T.alloc((t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            T.clear(c)
            for k in T.serial(p):
                T.copy(a, A[y * t, x * t])
                T.copy(b, B[y * t, x * t])
                T.broadcast(a, root=k, axis=0)
                T.broadcast(b, root=k, axis=1)
                T.gemm(a, b, c)
            T.copy(C[y * t, x * t], c)

    return kernel, [normal(n, n), normal(n, n), np.zeros((n, n), "f4")]


def cannon_of_cores(larger: int = 1) -> Case:
    """Tiles go round the rows and columns of a grid of cores."""
    p, t = 2 * larger, 8
    n = p * t

    @T.program
    def kernel(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(block=(p, p), threads=32) as (x, y):
            a = T.alloc((2, t, t), "f32", level="l1")
            b = T.alloc((2, t, t), "f32", level="l1")
            c = T.alloc((t, t), "f32")
            T.clear(c)
            T.copy(a[0], A[y * t, (x + y) % p * t])
            T.copy(b[0], B[(x + y) % p * t, x * t])
            T.barrier()
            for s in T.serial(p):
                T.copy(a[(s + 1) % 2], a[s % 2], dst=(x - 1) % p, axis=0)
                T.copy(b[(s + 1) % 2], b[s % 2], dst=(y - 1) % p, axis=1)
                T.gemm(a[s % 2], b[s % 2], c)
                T.barrier()
            T.copy(C[y * t, x * t], c)

    return kernel, [normal(n, n), normal(n, n), np.zeros((n, n), "f4")]


def of_example(name: str, function: str, *shapes: Callable[[int], Any], **more: Any) -> Callable[[int], Case]:
    """A program of the examples; arguments and shapes of arrays are functions of ``larger``."""

    def case(larger: int = 1) -> Case:
        (path,) = (Path(__file__).parents[2] / "examples").glob(f"{name}_*.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        prog = getattr(module, function)(*more["arguments"](larger))
        return prog, [normal(*shape(larger)) for shape in shapes]

    case.__name__ = f"{name}_{function}"
    return case


EXAMPLES = [
    of_example("30", "allgather_gemm", lambda k: (256 * k, 32), lambda k: (32, 128), lambda k: (256 * k, 128),
               arguments=lambda k: (256 * k, 128, 32)),
    of_example("31", "gemm_reduce_scatter", lambda k: (128 * k, 64), lambda k: (64, 64),
               lambda k: (128 * k, 64), arguments=lambda k: (128 * k, 64, 64)),
    of_example("44", "allgather_gemm", lambda k: (256 * k, 32), lambda k: (32, 128), lambda k: (256 * k, 128),
               arguments=lambda k: (256 * k, 128, 32)),
    of_example("45", "gemm_reduce_scatter", lambda k: (256 * k, 64), lambda k: (64, 64),
               lambda k: (256 * k, 64), arguments=lambda k: (256 * k, 64, 64)),
]  # fmt: skip
KINDS: list[Callable[..., Case]] = [
    persistent_gemm, split_k_with_atomics, specialised_fp8, paged_decode, histogram_of_threads,
    tiles_put_by_blocks, causal_ring_attention, cluster_multicast, summa_of_cores, cannon_of_cores, *EXAMPLES,
]  # fmt: skip
ONE_UNIT = {
    ("cerebras-wse2", kind)
    for kind in ("tiles_put_by_blocks", "causal_ring_attention", *(e.__name__ for e in EXAMPLES))
}
"""Programs of several devices, where one wafer is all there is."""
MACHINES = ("dgx-h100", "h100-cluster", "mi300x-8", "cerebras-wse2", "four-cards")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_kind(kind: Callable[[], Case], machine: str, tmp_path: Path) -> None:
    prog, arrays = kind()
    where = user_machine(tmp_path) if machine == "four-cards" else machine
    wanted = [a.copy() for a in arrays]
    if (machine, kind.__name__) in ONE_UNIT:
        with pytest.raises(ProgramError, match=r"instances of '\w+' asked for, but there are 1 in machine"):
            mt.lower(prog, *arrays, machine=where)
        return
    mt.run(prog, *wanted, machine=where)
    lowered = mt.lower(prog, *arrays, machine=where)
    mt.check(lowered)
    result = mt.simulate(lowered, *arrays)
    assert result.time_ps > 0
    params = list(prog.tensors)
    for name, got in result.outputs.items():
        after = wanted[params.index(name)]
        np.testing.assert_allclose(got.astype("f8"), after.astype("f8"), rtol=1e-2, atol=1e-3, err_msg=name)
    assert set(result.outputs) >= {params[-1]}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_plan_stays_as_long_as_it_was(kind: Callable[[int], Case]) -> None:
    lines = [
        len(str(mt.lower(*flat(kind(larger)), machine="h100-cluster").plan).splitlines()) for larger in (2, 4)
    ]
    assert lines[0] == lines[1]


def flat(case: Case) -> list[Any]:
    return [case[0], *case[1]]


def test_ring_attention_is_attention() -> None:
    prog, (q, k, v, out) = causal_ring_attention()
    mt.run(prog, q, k, v, out)
    k, v = np.repeat(k, 2, axis=0), np.repeat(v, 2, axis=0)
    score = q @ k.swapaxes(1, 2)
    score = np.where(np.tril(np.ones(score.shape[1:], bool)), score, -np.inf)
    weights = np.exp(score - score.max(axis=2, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(2, keepdims=True) @ v, rtol=1e-3, atol=1e-4)
