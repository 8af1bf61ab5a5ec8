"""Expressions that are computed again for the same values."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.expressions import computed_once, repeated, repeated_expressions
from megatile.verdict.study import Study


def weights(twice, rows=512, columns=2048):
    @T.program
    def kernel(X: T.Tensor((rows, columns), "f16"), Y: T.Tensor((rows, columns), "f16")):
        with T.Kernel(block=rows // 4, threads=128) as b:
            x, e, s = T.alloc((4, columns), "f32"), T.alloc((4, columns), "f32"), T.alloc((4,), "f32")
            T.copy(x, X[b * 4, 0])
            for i, j in T.Parallel(4, columns):
                e[i, j] = T.exp(T.sin(x[i, j]) * T.cos(x[i, j]))
            T.reduce_sum(e, s, dim=1)
            for i, j in T.Parallel(4, columns):
                if twice:
                    x[i, j] = T.exp(T.sin(x[i, j]) * T.cos(x[i, j])) * s[i]
                else:
                    x[i, j] = e[i, j] * s[i]
            T.copy(Y[b * 4, 0], x)

    return kernel


def test_values_that_are_computed_twice_are_found():
    slow, fast = (mt.simulate(weights(twice), machine="dgx-h100") for twice in (True, False))
    (found,) = repeated_expressions(Study(slow))
    assert "as in the code before" in found.bottleneck
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.1)
    assert not list(repeated(fast.lowered.source))
    assert computed_once(fast.lowered.source) is fast.lowered.source


def test_values_of_a_loop_and_of_a_row_are_found():
    @T.program
    def kernel(X: T.Tensor((64, 128), "f32"), G: T.Tensor((64,), "f32"), Y: T.Tensor((64, 128), "f32")):
        with T.Kernel(block=4, threads=128) as b:
            x, g = T.alloc((8, 128), "f32"), T.alloc((128,), "f32")
            T.copy(g, X[0, 0:128])
            for r in T.serial(2):
                T.copy(x, X[b * 16 + r * 8, 0])
                for i, j in T.Parallel(8, 128):
                    x[i, j] = x[i, j] * T.exp(T.cast(b * 8 + i, "f32") * g[j]) + T.sqrt(g[j])
                T.copy(Y[b * 16 + r * 8, 0], x)

    found = [
        (type(value).__name__, why) for _, value, why in repeated(mt.lower(kernel, machine="dgx-h100").source)
    ]
    assert found == [("Call", "in every round of 'r'"), ("Call", "for every 'i'")]
