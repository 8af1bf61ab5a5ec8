"""Kernels in TileLang's spelling: predicted, tuned by prediction, and measured as machine code."""

import math

import numpy as np
import pytest

import megatile as mt
import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.language.tile.errors import ProgramError

CONFIGS = [{"block": 16, "inner": 16}, {"block": 64, "inner": 32}, {"block": 32, "inner": 32}]


def product(A, B, block=32, inner=32):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((K, N), T.float16)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
        a = T.alloc_shared((block, inner), T.float16)
        b = T.alloc_shared((inner, block), T.float16)
        c = T.alloc_fragment((block, block), T.float32)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, inner), num_stages=2):
            T.copy(A[by * block, k * inner], a)
            T.copy(B[k * inner, bx * block], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * block, bx * block])
    return C


jitted = tilelang.jit(product)


def test_a_kernel_is_predicted_on_a_machine():
    kernel = jitted.compile(M=256, N=256, K=256)
    found = kernel.get_profiler().do_bench(machine="dgx-h100")
    assert found == pytest.approx(mt.simulate(kernel.program, machine="dgx-h100").time_ns / 1e6)
    with pytest.raises(ProgramError, match="only kernels are predicted"):
        kernel.get_profiler().do_bench(lambda a, b: a @ b, machine="dgx-h100")


def test_the_tuner_takes_what_is_predicted_to_be_the_fastest():
    tuned = tilelang.autotune(configs=CONFIGS)(jitted)
    kernel = tuned.compile(M=256, N=256, K=256)
    times = [
        jitted.compile(M=256, N=256, K=256, **c).get_profiler().do_bench(machine="dgx-h100") for c in CONFIGS
    ]
    assert kernel.config == CONFIGS[int(np.argmin(times))] != CONFIGS[0]
    assert kernel.latency == pytest.approx(min(times))
    a, b = (np.random.default_rng(s).standard_normal((64, 64)).astype("f2") for s in (0, 1))
    np.testing.assert_allclose(tuned(a, b), a.astype("f4") @ b.astype("f4"), rtol=1e-3, atol=1e-3)


def test_configurations_that_do_not_fit_are_passed_over(monkeypatch):
    tuned = tilelang.autotune(configs=[{"block": 512, "inner": 512}, {"block": 32, "inner": 32}])(jitted)
    assert tuned.compile(M=512, N=512, K=512).config == {"block": 32, "inner": 32}
    monkeypatch.setenv("MEGATILE_TUNE", "1")
    first = tilelang.autotune(configs=CONFIGS)(jitted).compile(M=64, N=64, K=64)
    assert first.config == CONFIGS[0] and math.isnan(first.latency)


def test_the_source_is_the_c_that_is_measured():
    kernel = jitted.compile(M=64, N=64, K=64)
    text = kernel.get_kernel_source()
    assert "static" in text and "T.gemm(a, b, c)" in text
    assert kernel.get_profiler().do_bench() > 0
    assert tilelang.do_bench(lambda: None) >= 0
