"""Values that TileLang's generated code gives at edges and in narrow types."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.language.tile.errors import ProgramError


def padded(by_element: bool, safe: float = 7.0, dtype: object = T.float32) -> object:
    @T.prim_func
    def main(A: T.Tensor((5, 6), dtype), B: T.Tensor((8, 8), dtype)):
        with T.Kernel(2, threads=32) as bx:
            T.annotate_safe_value({A: safe})
            s = T.alloc_shared((4, 8), dtype)
            if by_element:
                for i, j in T.Parallel(4, 8):
                    s[i, j] = A[bx * 4 + i, j]
            else:
                T.copy(A[bx * 4, 0], s)
            T.copy(s, B[bx * 4, 0])

    return main


@pytest.mark.parametrize("by_element", [False, True])
@pytest.mark.parametrize("dtype", [T.float32, T.float16])
def test_over_the_edge_is_the_safe_value(by_element: bool, dtype: object) -> None:
    element = np.float32 if dtype == T.float32 else np.float16
    a, b = np.arange(30, dtype=element).reshape(5, 6), np.zeros((8, 8), element)
    tilelang.compile(padded(by_element, dtype=dtype))(a, b)
    wanted = np.full((8, 8), 7, element)
    wanted[:5, :6] = a
    np.testing.assert_array_equal(b, wanted)


def test_tiles_have_no_safe_value() -> None:
    with pytest.raises(ProgramError, match="give tensors in global memory"):

        @T.prim_func
        def main(A: T.Tensor((4,), T.float32)):
            with T.Kernel(1, threads=32):
                s = T.alloc_shared((4,), T.float32)
                T.annotate_safe_value({s: 1.0})


@pytest.mark.parametrize(
    ("dtype", "element", "most"),
    [(T.float8_e4m3fn, ml_dtypes.float8_e4m3fn, 448), (T.float8_e5m2, ml_dtypes.float8_e5m2, 57344)],
)
def test_casts_to_fp8_stop_at_the_greatest_finite_number(dtype: object, element: type, most: int) -> None:
    @T.prim_func
    def main(
        A: T.Tensor((5,), T.float32),
        B: T.Tensor((5,), dtype),
        C: T.Tensor((5,), dtype),
        D: T.Tensor((5,), T.float32),
    ):
        with T.Kernel(1, threads=32):
            s = T.alloc_fragment((5,), T.float32)
            T.copy(A, s)
            T.copy(s, B)
            for i in T.Parallel(5):
                C[i] = s[i]
                D[i] = T.cast(T.cast(s[i], dtype), T.float32)

    a = np.array([1.0, 1e9, -1e9, np.inf, np.nan], np.float32)
    b, c, d = np.zeros(5, element), np.zeros(5, element), np.zeros(5, np.float32)
    tilelang.compile(main)(a, b, c, d)
    for found in (b, c, d):
        np.testing.assert_array_equal(found.astype(np.float32), [1, most, -most, most, np.nan])
