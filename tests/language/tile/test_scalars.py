"""``language/tile/scalars.py``: values of a kernel that are known only at run time."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


def test_reflected_and_bitwise_operators() -> None:
    @T.program
    def p(A: T.Tensor((8, 7), "i32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                A[i, 0] = 2**i
                A[i, 1] = 1 << i
                A[i, 2] = 5 & i
                A[i, 3] = 5 | i
                A[i, 4] = 5 ^ i
                A[i, 5] = 255 >> i
                A[i, 6] = ~i

    a = np.zeros((8, 7), np.int32)
    mt.run(p, a)
    i = np.arange(8)
    expected = np.stack([2**i, 1 << i, 5 & i, 5 | i, 5 ^ i, 255 >> i, ~i], axis=1)
    np.testing.assert_array_equal(a, expected)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda v: f"{v}", r"is put into a text.*T.print"),
        (lambda v: [1] if bool(v) else [], r"is a Python condition.*T.if_then_else\(condition, a, b\)"),
        (lambda v: list(range(4))[v], r"is needed as a Python number.*T.serial\(...\) for loops"),
        (lambda v: float(v), r"is needed as a Python number.*the functions of T, e.g. T.exp"),
    ],
    ids=["text", "condition", "index", "float"],
)
def test_values_asked_for_too_early(use: Callable[[Any], Any], message: str) -> None:
    @T.program
    def p(A: T.Tensor((4,), "f32")):
        with T.Kernel(block=4) as bx:
            use(bx)

    with pytest.raises(ProgramError, match=rf"(?s)known only when the program runs, and {message}.*\^"):
        p.build()


def test_numbers_of_numpy_are_numbers() -> None:
    two, three = np.float32(2), np.int64(3)

    @T.program
    def p(A: T.Tensor((8,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                if three < i:
                    A[i] = two * A[i] + three - np.float64(0.5) / two

    a = np.arange(8, dtype=np.float32)
    expected = np.where(a > 3, 2 * a + 3 - 0.25, a)
    mt.run(p, a)
    np.testing.assert_array_equal(a, expected)
