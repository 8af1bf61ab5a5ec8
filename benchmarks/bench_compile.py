"""Compiled tile programs on this computer, beside NumPy (OpenBLAS) and torch with as many threads."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T
from harness import Row, at_most, bench, best_of, ratio_at_most, sized, smoke

EXAMPLES = Path(__file__).parents[1] / "examples"
Figure = tuple[str, float, float, float]
"""A name, our seconds, the rival's, and how many times as fast we want to be."""


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_turns(ours: Callable[[], object], rival: Callable[[], object], repeat: int) -> tuple[float, float]:
    """The shortest runs of two functions, several of one and then several of the other: threads of one that
    still wait for work do not meet those of the other (OpenBLAS lets them spin for 2^28 cycles)."""
    best = [float("inf"), float("inf")]
    if not smoke():
        ours(), rival()
    for _ in range(sized(4, 1)):
        for which, function in enumerate((ours, rival)):
            time.sleep(sized(0.2, 0.0))
            for _ in range(sized(repeat, 1)):
                start = time.perf_counter()
                function()
                best[which] = min(best[which], time.perf_counter() - start)
    return best[0], best[1]


def gemm(n: int, dtype: str = "f32", bM: int = 128, bN: int = 128, bK: int = 32) -> Any:
    return example("21_gemm_block").gemm(n, n, n, bM, bN, bK, dtype, 2)


def softmax(M: int, N: int, bM: int = 1) -> Any:
    """Rows that fit a tile: a pass for the maximum, one for the exponentials and their sum, one to scale."""

    @T.program
    def kernel(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32")):
        with T.Kernel(block=T.ceildiv(M, bM), threads=128) as bx:
            x = T.alloc((bM, N), "f32")
            top = T.alloc((bM,), "f32")
            total = T.alloc((bM,), "f32")
            T.copy(x, X[bx * bM, 0])
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = x[i, j] * (1.0 / total[i])
            T.copy(Y[bx * bM, 0], x)

    return kernel


def products(threads: int) -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    for n in sized((512, 1024, 2048), (128,)):
        a, b = rng.standard_normal((2, n, n), dtype=np.float32)
        c, d = np.empty_like(a), np.empty_like(a)
        k = mt.compile(gemm(n), threads=threads)
        ours, rival = in_turns(lambda: k(a, b, c), lambda: np.matmul(a, b, out=d), max(2, 2**23 // n**2 // 2))  # noqa: B023
        np.testing.assert_allclose(c, d, rtol=1e-3, atol=1e-2)
        yield f"GEMM f32 {n}, NumPy", ours, rival, 0.95


def of_torch(threads: int) -> Iterator[Figure]:
    import ml_dtypes
    import torch

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    n = sized(512, 128)
    half = rng.standard_normal((n, n)).astype(ml_dtypes.bfloat16)
    same = torch.from_numpy(half.view(np.int16)).view(torch.bfloat16)
    c = np.empty((n, n), np.float32)
    k = mt.compile(gemm(n, "bf16"), threads=threads)
    yield (
        f"GEMM bf16 {n}",
        *in_turns(lambda: k(half, half, c), lambda: torch.mm(same, same), 5),
        bf16_bar(cpu_flags()),
    )
    for D in sized((64, 128), (64,)):
        for causal in (False, True):
            yield attention(threads, D, causal)
    for M, N in sized(((256, 1024), (512, 512), (64, 4096)), ((4, 16),)):
        x = rng.standard_normal((M, N), dtype=np.float32)
        y, t = np.empty_like(x), torch.from_numpy(x)
        k = mt.compile(softmax(M, N), threads=threads)
        ours, rival = in_turns(lambda: k(x, y), lambda: torch.softmax(t, 1), 30)  # noqa: B023
        yield f"softmax {M}x{N}", ours, rival, 1.0
    for M, N in sized(((256, 1024), (128, 4096)), ((4, 64),)):
        half = rng.standard_normal((M, N)).astype(ml_dtypes.bfloat16)
        w, out = half[0].copy(), np.empty_like(half)
        tx, tw = (torch.from_numpy(z.view(np.int16)).view(torch.bfloat16) for z in (half, w))
        k = mt.compile(example("26_rmsnorm").rmsnorm(M, N, bM=4), threads=threads)
        rival_call = lambda: torch.nn.functional.rms_norm(tx, (N,), tw, 1e-5)  # noqa: B023, E731
        yield f"RMSNorm bf16 {M}x{N}", *in_turns(lambda: k(half, w, out), rival_call, 30), 1.0  # noqa: B023


def bf16_bar(flags: set[str]) -> float:
    """Return how many times as fast as torch we want to be: as fast where the processor multiplies bf16
    itself, 50 times where torch has no kernel for it."""
    return 1.0 if {"avx512_bf16", "amx_bf16", "bf16", "svebf16"} & flags else 50.0


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Return the instruction sets of this computer's first processor, as Linux names them."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(values.split())
    return set()


def attention(threads: int, D: int, causal: bool) -> Figure:
    import torch

    rng = np.random.default_rng(0)
    S, heads = sized(512, 64), 2
    q, k, v = rng.standard_normal((3, 1, heads, S, D), dtype=np.float32)
    out, lse = np.empty_like(q), np.empty((1, heads, S), np.float32)
    make = example("27_flash_attention").flash_attention
    kernel = mt.compile(make(1, heads, heads, S, D, causal, bM=64, bN=64), threads=threads)
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    ours, rival = in_turns(lambda: kernel(q, k, v, out, lse), lambda: sdpa(*tensors, is_causal=causal), 10)
    np.testing.assert_allclose(out, sdpa(*tensors, is_causal=causal).numpy(), rtol=1e-3, atol=1e-4)
    return f"attention f32 D {D}{', causal' if causal else ''}", ours, rival, 1.3 if causal else 1.1


def measured(which: str, threads: int) -> list[Figure]:
    """In a process whose libraries have this many threads."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    done = subprocess.run(
        [sys.executable, __file__, which, str(threads)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [tuple(row) for row in json.loads(done.stdout)]


@bench("compile: products")
def gemms() -> Iterator[Row]:
    for threads in sized((1, 2), (2,)):
        for name, ours, rival, times in measured("products", threads):
            yield Row(f"{name}, {threads} threads", ours, "s", rival, "NumPy", ratio_at_most(1 / times))


@bench("compile: torch", needs=["torch"])
def others() -> Iterator[Row]:
    for name, ours, rival, times in measured("of_torch", 1):
        yield Row(name, ours, "s", rival, "torch", ratio_at_most(1 / times))


@bench("compile: overhead")
def overhead() -> Iterator[Row]:
    mt.machine("cpu")
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("MEGATILE_CACHE")
        os.environ["MEGATILE_CACHE"] = folder
        try:
            sizes = iter(range(sized(384, 128), 4000, 128))
            cold = best_of(lambda: mt.compile(gemm(next(sizes)), threads=1), 3)
        finally:
            if before is None:
                del os.environ["MEGATILE_CACHE"]
            else:
                os.environ["MEGATILE_CACHE"] = before
    yield Row("GEMM program to callable, nothing kept", cold, "s", bar=at_most(0.4))
    k = mt.compile(softmax(1, 16), threads=1)
    x = np.ones((1, 16), np.float32)

    def hundred() -> None:
        for _ in range(100):
            k(x, x)

    yield Row("call of a tiny program", best_of(hundred, 20) / 100, "s", bar=at_most(10e-6))


if __name__ == "__main__":
    which, count = sys.argv[1:]
    print(json.dumps(list({"products": products, "of_torch": of_torch}[which](int(count)))))
