"""What a reader would take for something else is refused, or means what it says."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile import MegatileError


def test_arrays_are_given_by_name() -> None:
    @T.program
    def twice(A: T.Tensor((8,), "f32"), B: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            for i in T.Parallel(8):
                B[i] = 2.0 * A[i]

    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    mt.run(twice, B=b, A=a)
    np.testing.assert_array_equal(b, 2 * a)
    mt.run(twice.build("dgx-h100"), 2 * a, B=b)
    np.testing.assert_array_equal(b, 4 * a)
    for given, message in [
        ({"A": a}, "called without B"),
        ({"A": a, "b": b}, "no argument 'b'.*did you mean 'B'"),
    ]:
        with pytest.raises(MegatileError, match=message):
            mt.run(twice, **given)
    with pytest.raises(MegatileError, match="'A' of 'twice' is given twice"):
        mt.run(twice, a, b, A=a)


@pytest.mark.parametrize("call", [mt.run, mt.simulate, mt.lower, mt.check, mt.price, mt.compile])
def test_a_factory_is_called_first(call: object) -> None:
    def gemm(M: int, N: int, *, block: int = 64) -> None: ...

    with pytest.raises(MegatileError, match=r"call it first: gemm\(M=…, N=…, block=…\)"):
        call(gemm)  # type: ignore[operator]


def test_a_kernel_without_its_decorator_is_reported() -> None:
    def kernel(A: T.Tensor((8,), "f32")) -> None: ...

    with pytest.raises(MegatileError, match="decorate the function with @T.program"):
        mt.lower(kernel)
