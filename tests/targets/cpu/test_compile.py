"""``mt.compile``: results, arguments, errors, and what is kept."""

import ml_dtypes
import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.common.errors import CompileError


def test_what_cannot_be_compiled_is_refused_with_its_line() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "f4e2m1")):
        with T.Kernel(block=1):
            T.fill(A[0:8], 1)

    with pytest.raises(CompileError, match="'f4e2m1' cannot be compiled yet"):
        mt.compile(kernel)


def test_sanitizers_find_nothing(tmp_path) -> None:
    """A program with tails, gathers, atomics and reductions under the undefined-behaviour sanitizer."""

    @T.program
    def kernel(
        A: T.Tensor((37, 29), "f32"),
        I: T.Tensor((29,), "i32"),
        B: T.Tensor((37, 29), "bf16"),
        S: T.Tensor((37,), "f32"),
    ):
        with T.Kernel(block=T.ceildiv(37, 8)) as bx:
            a = T.alloc((8, 29), "f32")
            s = T.alloc((8,), "f32")
            T.copy(a, A[bx * 8, 0])
            T.reduce_sum(a, s, dim=1)
            for i, j in T.Parallel(8, 29):
                if bx * 8 + i < 37:
                    T.atomic_add(S[bx * 8 + i], T.exp(a[i, I[j]]) + s[i])
            T.copy(B[bx * 8, 0], a)

    a = np.random.default_rng(0).standard_normal((37, 29)).astype(np.float32)
    index = np.arange(29, dtype=np.int32)[::-1].copy()
    results = []
    for options in ((), ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")):
        b, s = np.zeros((37, 29), ml_dtypes.bfloat16), np.zeros(37, np.float32)
        mt.compile(kernel, threads=2, options=options)(a, index, b, s)
        results.append(s)
        np.testing.assert_array_equal(b, a.astype(ml_dtypes.bfloat16))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    np.testing.assert_allclose(results[0], np.exp(a).sum(1) + 29 * a.sum(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_variable_may_be_called_stop(target: str) -> None:
    """Loops of elementwise code have names of their own for their ends."""

    @T.program
    def kernel(X: T.Tensor((8,), "i32"), Y: T.Tensor((8,), "i32")):
        with T.Kernel(block=1, threads=32):
            for i in T.Parallel(8):
                stop = X[i]
                for j in T.serial(3):
                    T.atomic_add(Y[i], stop + j)

    x, y = np.arange(8, dtype="i4"), np.zeros(8, "i4")
    mt.compile(kernel, target=target)(x, y)
    np.testing.assert_array_equal(y, 3 * x + 3)
