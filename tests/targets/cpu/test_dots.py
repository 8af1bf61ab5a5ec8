"""``targets/cpu/dots.py``: how micro-kernels multiply."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.dtypes import accumulator, numpy_dtype
from megatile.hda.probe import host_flags
from megatile.targets.cpu import kernel as cpu_kernel
from megatile.targets.cpu.dots import DOTS, words_of

EVERY = frozenset({"bf16", "i8", "i16"})
LIMITS = {"i8": (-128, 128), "u8": (0, 256), "i16": (-(2**15), 2**15), "i32": (-(2**31), 2**31)}


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    if dtype in LIMITS:
        return rng.integers(*LIMITS[dtype], shape).astype(numpy_dtype(dtype))
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def product(M, N, K, da, db, ta, tb, whole):
    """A long product over tensors (``whole``), or one of tiles whose elements were changed before."""
    total = accumulator(da)
    bM, bN, bK = (32, 64, 16) if whole else (M, N, K)

    @T.program
    def kernel(
        A: T.Tensor((K, M) if ta else (M, K), da), B: T.Tensor((N, K) if tb else (K, N), db),
        C: T.Tensor((M, N), total),
    ):  # fmt: skip
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bK, bM) if ta else (bM, bK), da, level="l1")
            b = T.alloc((bN, bK) if tb else (bK, bN), db, level="l1")
            c = T.alloc((bM, bN), total)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=1):
                if ta:
                    T.copy(a, A[k * bK, by * bM])
                else:
                    T.copy(a, A[by * bM, k * bK])
                if tb:
                    T.copy(b, B[bx * bN, k * bK])
                else:
                    T.copy(b, B[k * bK, bx * bN])
                if not whole:
                    for i in T.Parallel(1):
                        b[i, i] = b[i, i] + b[i, i]
                T.gemm(a, b, c, transpose_A=ta, transpose_B=tb)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def check(size, da, db, flips, whole, options=()):
    M, N, K = size
    ta, tb = flips
    program = product(M, N, K, da, db, ta, tb, whole)
    a = numbers((K, M) if ta else (M, K), da, 0)
    b = numbers((N, K) if tb else (K, N), db, 1)
    wanted, got = np.zeros((2, M, N), numpy_dtype(accumulator(da)))
    mt.run(program, a, b, wanted)
    k = mt.compile(program, threads=1, options=options)
    k(a, b, got)
    bound = 0 if da in LIMITS else 1e-5
    np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)
    return k.source


@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("dtypes", [("bf16", "bf16"), ("i8", "i8"), ("u8", "i8"), ("i16", "i16")])
def test_every_way_operands_lie(dtypes, flips, monkeypatch) -> None:
    monkeypatch.setattr(cpu_kernel, "words_of", lambda flags: EVERY)
    kind = dtypes[0] if dtypes[0] in ("bf16", "i8") else "i16"
    for size, whole in (((70, 100, 48), True), ((29, 33, 19), False)):
        assert f"gemm_{kind}_" in check(size, *dtypes, flips, whole)


@pytest.mark.parametrize("dtype", ["bf16", "i8", "i16"])
def test_without_the_instructions_the_result_is_the_same(dtype, monkeypatch) -> None:
    monkeypatch.setattr(cpu_kernel, "words_of", lambda flags: EVERY)
    for options in (
        ("-U__AVX512BF16__", "-U__AVX512VNNI__"),
        ("-U__AVX512VNNI__", "-U__AVX512BW__", "-U__AVX2__"),
    ):
        check((40, 70, 36), dtype, dtype, (False, True), True, options)


@pytest.mark.parametrize("dtype", ["bf16", "i8", "u8", "i16", "i32", "f64", "f16"])
def test_a_processor_without_words(dtype, monkeypatch) -> None:
    monkeypatch.setattr(cpu_kernel, "words_of", lambda flags: frozenset())
    kind = "f32" if dtype in ("bf16", "f16") else dtype if dtype == "f64" else "i32"
    for whole in (True, False):
        assert f"gemm_{kind}_" in check((40, 70, 36), dtype, dtype, (True, False), whole)


def test_words_follow_the_flags_of_the_processor() -> None:
    assert words_of(frozenset({"avx512_bf16", "avx2"})) == {"bf16", "i16"}
    assert words_of(frozenset({"asimd"})) == frozenset()
    assert words_of(host_flags()) <= set(DOTS)


def test_infinities_and_nan_pass_through_words(monkeypatch) -> None:
    monkeypatch.setattr(cpu_kernel, "words_of", lambda flags: EVERY)
    program = product(32, 64, 16, "bf16", "bf16", False, False, True)
    a, b = numbers((32, 16), "bf16", 0), numbers((16, 64), "bf16", 1)
    a[3, 5], a[4, 5], b[5, 7] = np.inf, np.nan, 0
    wanted, got = np.zeros((2, 32, 64), np.float32)
    with np.errstate(invalid="ignore"):
        mt.run(program, a, b, wanted)
    mt.compile(program, threads=1)(a, b, got)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
