"""``targets/cpu/fusing.py``: an elementwise loop and a reduction of what it writes, in one pass over the
elements."""

import numpy as np
import pytest
from tests.targets.cpu.passes_cases import check, random, softmax

import megatile.language as T


def test_reductions_of_loops_over_rows_and_columns() -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), R: T.Tensor((24,), "f32"), C: T.Tensor((40,), "f32"), Y: T.Tensor((24, 40), "f32")):  # fmt: skip # noqa: E501
        with T.Kernel(block=1):
            x = T.alloc((24, 40), "f32")
            r = T.alloc((24,), "f32")
            c = T.alloc((40,), "f32")
            before = T.alloc((24,), "f32")
            T.copy(x, X[0, 0])
            T.fill(r, 0.5)
            for i, j in T.Parallel(24, 40):
                x[i, j] = x[i, j] * 2.0 - 0.25
            T.copy(before, r)
            T.reduce_max(x, r, dim=1, clear=False)
            for i, j in T.Parallel(24, 40):
                x[i, j] = T.tanh(x[i, j] - before[i])
            T.reduce_absmax(x, c, dim=0)
            T.copy(R[0], r)
            T.copy(C[0], c)
            T.copy(Y[0, 0], x)

    check(
        kernel,
        random(24, 40),
        np.zeros(24, np.float32),
        np.zeros(40, np.float32),
        np.zeros((24, 40), np.float32),
    )


def test_nan_and_infinity_pass_through_reductions() -> None:
    x = random(8, 64)
    x[1, 5], x[2, 63], x[3, 0], x[4] = np.nan, np.inf, -np.inf, -np.inf
    y = np.zeros((8, 64), np.float32)
    check(softmax(8, 64, 4), x, y)


@pytest.mark.parametrize("why", ["copies the tile", "changes what is read", "reads the result", ""])
def test_a_loop_and_its_reduction_are_one_only_where_nothing_minds(why: str) -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), R: T.Tensor((24,), "f32"), Y: T.Tensor((24, 40), "f32")):
        with T.Kernel(block=1):
            x, y = T.alloc((24, 40), "f32"), T.alloc((24, 40), "f32")
            r, s = T.alloc((24,), "f32"), T.alloc((24,), "f32")
            T.copy(x, X[0, 0])
            T.fill(s, 0.5)
            T.fill(r, 0.25)
            T.clear(y)
            if why == "reads the result":
                for i, j in T.Parallel(24, 40):
                    x[i, j] = x[i, j] * 2.0 - r[i]
            else:
                for i, j in T.Parallel(24, 40):
                    x[i, j] = x[i, j] * 2.0 - s[i]
            if why == "copies the tile":
                T.copy(y, x)
            elif why == "changes what is read":
                T.fill(s, 3.0)
            T.reduce_sum(x, r, dim=1)
            for i, j in T.Parallel(24, 40):
                y[i, j] = y[i, j] + x[i, j] * s[i]
            T.copy(R[0], r)
            T.copy(Y[0, 0], y)

    check(kernel, random(24, 40), np.zeros(24, np.float32), np.zeros((24, 40), np.float32), rtol=1e-4)


def test_a_reduction_into_what_the_loop_reads_comes_after_the_loop() -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), M: T.Tensor((40,), "f32"), Y: T.Tensor((24, 40), "f32")):
        with T.Kernel(block=1):
            x = T.alloc((24, 40), "f32")
            top = T.alloc((40,), "f32")
            T.copy(x, X[0, 0])
            T.copy(top, M[0])
            for i, j in T.Parallel(24, 40):
                x[i, j] = x[i, j] - top[j]
            T.reduce_max(x, top, dim=0)
            T.copy(M[0], top)
            T.copy(Y[0, 0], x)

    check(kernel, random(24, 40), random(40, seed=1), np.zeros((24, 40), np.float32))


def test_a_sum_is_taken_while_its_elements_are_made() -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), R: T.Tensor((24,), "f32")):
        with T.Kernel(block=1):
            x = T.alloc((24, 40), "f32")
            r = T.alloc((24,), "f32")
            T.copy(x, X[0, 0])
            for i, j in T.Parallel(24, 40):
                x[i, j] = x[i, j] * 2.0
            T.reduce_sum(x, r, dim=1)
            T.copy(R[0], r)

    source = check(kernel, random(24, 40), np.zeros(24, np.float32)).source
    assert source.index("T.reduce_sum(x, r, dim=1)") < source.index("for (long i_v")
