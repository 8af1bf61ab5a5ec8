"""The tile language: building a Program, and running it with all checks on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import megatile as mt
import megatile.language as T
from harness import Row, at_most, bench, best_of, growth, ratio_at_most, sized

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_blocks(blocks: int) -> float:
    """Seconds for a launch of blocks of four elements."""
    a, b, c = np.ones((3, blocks * 4), np.float32)
    program = example("20_vector_add").vector_add(blocks * 4, 4)
    program.build()
    return best_of(lambda: mt.run(program, a, b, c))


def every_core(side: int) -> Any:
    """A copy, a parallel loop and a copy on every core of a square."""

    @T.program
    def kernel(A: T.Tensor((side * side, 16), "f32"), B: T.Tensor((side * side, 16), "f32")):
        with T.Kernel(block=(side, side)) as (x, y):
            t = T.alloc((16,), "f32")
            T.copy(t, A[y * side + x, 0])
            for i in T.Parallel(16):
                t[i] = t[i] * 2.0 + 1.0
            T.copy(B[y * side + x, 0], t)

    return kernel


@bench("language")
def programs() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    n = sized(1024, 128)
    make = example("24_gemm_tensor_parallel").gemm_tensor_parallel
    mt.machine("dgx-h100")
    building = best_of(lambda: make(n, n, n).build())
    yield Row("build the tensor parallel GEMM", building, "s", bar=at_most(0.050))

    a, b = rng.standard_normal((2, n, n), dtype=np.float32)
    c = np.empty_like(a)
    gemm = example("21_gemm_block").gemm(n, n, n, 128, 128, 128, "f32")
    running = best_of(lambda: mt.run(gemm, a, b, c))
    yield Row(f"GEMM {n} in tiles of 128, checked", running, "s", best_of(lambda: a @ b), "NumPy", at_most(3))

    half, other = (x.astype(np.float16) for x in (a, b))
    result = np.empty_like(a)
    gemm16 = example("21_gemm_block").gemm(n, n, n, 128, 128, 64, "f16")
    running = best_of(lambda: mt.run(gemm16, half, other, result))
    rival = best_of(lambda: half.astype(np.float32) @ other.astype(np.float32))
    yield Row(f"GEMM {n} of f16, checked", running, "s", rival, "NumPy in f32", ratio_at_most(3))

    yield from growth("small blocks, checked", small_blocks, 100, "s", bar=ratio_at_most(12))
    blocks, side, seq = sized((10_000, 200, 2048), (10, 4, 128))
    yield Row(f"{blocks:_} small blocks, checked", small_blocks(blocks), "s", bar=at_most(1))
    cores = np.ones((side**2, 16), np.float32)
    wafer = every_core(side)
    wafer.build("cerebras-wse2")
    running = best_of(lambda: mt.run(wafer, cores, np.empty_like(cores), machine="cerebras-wse2"))
    yield Row(f"{side**2:_} cores of a wafer, 3 statements each, checked", running, "s", bar=at_most(1))

    q, k, v = rng.standard_normal((3, 1, 1, seq, 64), dtype=np.float32)
    out, lse = np.empty_like(q), np.empty((1, 1, seq), np.float32)
    attention = example("27_flash_attention").flash_attention(1, 1, 1, seq, 64, causal=False)
    running = best_of(lambda: mt.run(attention, q, k, v, out, lse))
    yield Row(f"FlashAttention {seq} x 64, checked", running, "s", bar=at_most(5))
