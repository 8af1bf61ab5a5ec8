"""``language/tile/functions.py``: scalar functions of kernels."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T


def test_mathematics() -> None:
    names = [
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tanh",
        "erf",
        "sigmoid",
        "silu",
        "abs",
        "floor",
        "ceil",
    ]

    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((len(names) + 4, 8), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                for row, name in enumerate(names):
                    Y[row, i] = getattr(T, name)(X[i])
                Y[len(names), i] = T.max(X[i], 1.0)
                Y[len(names) + 1, i] = T.clamp(X[i], 0.5, 1.5)
                Y[len(names) + 2, i] = X[i] ** 2 % 1.0 // 0.25
                Y[len(names) + 3, i] = T.if_then_else(
                    X[i] > 1.0, T.cast(T.cast(X[i], "i32"), "f32"), T.min(X[i], 0.1)
                )

    x = np.linspace(0.1, 2.3, 8).astype(np.float32)
    y = zeros(len(names) + 4, 8)
    mt.run(p, x, y)
    from math import erf

    functions = [np.exp, np.exp2, np.log, np.log2, np.sqrt, lambda v: 1 / np.sqrt(v), np.sin, np.cos, np.tanh,
                 np.vectorize(erf), lambda v: 1 / (1 + np.exp(-v)), lambda v: v / (1 + np.exp(-v)),
                 np.abs, np.floor, np.ceil]  # fmt: skip
    expected = [f(x) for f in functions]
    expected += [
        np.maximum(x, 1),
        np.clip(x, 0.5, 1.5),
        x**2 % 1 // 0.25,
        np.where(x > 1, np.trunc(x), np.minimum(x, 0.1)),
    ]
    np.testing.assert_allclose(y, np.array(expected, np.float32), rtol=2e-6)


def test_build_time_mathematics() -> None:
    assert T.ceildiv(7, 2) == 4
    assert T.exp2(3) == 8
    assert T.max(1, 5, 3) == 5
    assert T.infinity("i8") == 127
    assert T.infinity("f16") == float("inf")


@pytest.mark.parametrize(("dtype", "kind"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_arithmetic_rounds_as_the_dtype_does(dtype: str, kind: Any) -> None:
    @T.program
    def p(X: T.Tensor((32,), dtype), Y: T.Tensor((32,), dtype), Z: T.Tensor((32,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(32):
                Z[i] = T.cast(X[i] * Y[i] + 0.1, "f32")

    x, y, z = f32(32).astype(kind), f32(32).astype(kind)[::-1].copy(), zeros(32)
    mt.run(p, x, y, z)
    np.testing.assert_array_equal(z, (x * y + kind(0.1)).astype(np.float32))
    assert not np.array_equal(z, x.astype(np.float32) * y.astype(np.float32) + np.float32(0.1))


@pytest.mark.parametrize("value", [-2.5, -0.5, 0.0, 0.5, 1.5, 2.5, 2.4, 1e9])
def test_halves_round_to_even(value: float) -> None:
    @T.program
    def rounded(A: T.Tensor((1,), "f32"), B: T.Tensor((2,), "f32"), I: T.Tensor((1,), "i32")):
        with T.Kernel(block=1, threads=32):
            B[0] = T.round(A[0])
            B[1] = 1.0 * T.round(value)
            I[0] = T.bitcast(A[0], "i32")

    a, b, i = np.array([value], np.float32), np.zeros(2, np.float32), np.zeros(1, np.int32)
    mt.run(rounded, a, b, i)
    np.testing.assert_array_equal(b, [np.round(a[0]), np.round(value)])
    assert i[0] == a.view(np.int32)[0]
