"""Slices with steps, indices from the end, numbers as arguments, and the functions beside them."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError


@T.program
def every_second(
    A: T.Tensor((8, 16), "f32"), B: T.Tensor((4, 4), "f32"), C: T.Tensor((8,), "f32"), scale: T.float32
):
    with T.Kernel(block=1, threads=32):
        t = T.alloc_shared((4, 4), "f32")
        T.copy(t, A[::2, 1:16:4])
        T.copy(B, t)
        last = T.alloc_shared((8, 4), "f32")
        products = T.alloc_fragment((8,), "f32")
        T.copy(last, A[:, -4:])
        T.reduce_prod(last, products, dim=1)
        for i in T.Parallel(8):
            C[i] = T.round(products[i] * scale) + A[-1, -1]


def run(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    mt.run(every_second, a, b, c, 8.5)


def compiled(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    mt.compile(every_second, target="cpu")(a, b, c, 8.5)


def executed(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    found = mt.execute(every_second, a, b, c, 8.5, machine="dgx-h100")
    b[...], c[...] = found["B"], found["C"]


@pytest.mark.parametrize("how", [run, compiled, executed])
def test_steps_ends_and_numbers_mean_what_numpy_means(how) -> None:  # type: ignore[no-untyped-def]
    a = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    b, c = np.zeros((4, 4), np.float32), np.zeros(8, np.float32)
    how(a, b, c)
    np.testing.assert_array_equal(b, a[::2, 1:16:4])
    np.testing.assert_allclose(c, np.round(np.prod(a[:, -4:], 1) * np.float32(8.5)) + a[-1, -1], rtol=1e-6)


def test_a_step_may_stand_at_the_destination_and_leave_a_rest() -> None:
    @T.program
    def spread(A: T.Tensor((3,), "f32"), B: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.copy(B[1:8:3], A[:])

    a, b = np.arange(1, 4, dtype=np.float32), np.zeros(8, np.float32)
    mt.run(spread, a, b)
    np.testing.assert_array_equal(b, [0, 1, 0, 0, 2, 0, 0, 3])


def test_steps_with_other_extents_are_refused() -> None:
    @T.program
    def wrong(A: T.Tensor((8,), "f32"), B: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            T.copy(B[::3], A[::2])

    with pytest.raises(ProgramError, match=r"'B' \(3\) and 'A' \(4\) have different shapes"):
        wrong.build("dgx-h100")


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


def test_persistent_tiles_of_two_dimensions() -> None:
    @T.program
    def tiles(A: T.Tensor((8, 12), "f32")):
        with T.Kernel(block=5, threads=32) as b:
            for i, j in T.Persistent((4, 3), 5, b):
                t = T.alloc_shared((2, 4), "f32")
                T.fill(t, 3.0 * i + j)
                T.copy(A[i * 2, j * 4], t)

    a = np.zeros((8, 12), np.float32)
    mt.run(tiles, a)
    np.testing.assert_array_equal(a, np.arange(12).reshape(4, 3).repeat(2, 0).repeat(4, 1))


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64"])
@pytest.mark.parametrize("dim", [0, 1])
def test_products_of_rows_and_columns(dtype: str, dim: int) -> None:
    @T.program
    def product(A: T.Tensor((5, 6), dtype), B: T.Tensor((6 if dim == 0 else 5,), dtype)):
        with T.Kernel(block=1, threads=32):
            t, r = T.alloc_shared((5, 6), dtype), T.alloc_fragment((6 if dim == 0 else 5,), dtype)
            T.copy(t, A)
            T.reduce_prod(t, r, dim=dim)
            T.copy(B, r)

    element = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[dtype]
    a = np.random.default_rng(1).integers(-3, 4, (5, 6)).astype(element)
    for how in (mt.run, mt.compile(product, target="cpu")):
        b = np.zeros(6 if dim == 0 else 5, element)
        how(product, a, b) if how is mt.run else how(a, b)
        np.testing.assert_array_equal(b, np.prod(a, dim))
