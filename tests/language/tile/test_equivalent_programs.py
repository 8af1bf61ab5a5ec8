"""Pipelined is serial, any tile size is any other, any placement is any other; and all of it fast enough."""

import numpy as np
import pytest
from tests.language.tile.language_examples import load

import megatile as mt
import megatile.language as T

RNG = np.random.default_rng(0)
A = RNG.standard_normal((48, 40), dtype=np.float32)
B = RNG.standard_normal((40, 56), dtype=np.float32)


def product(stages: int = 1, bM: int = 16, bN: int = 16, bK: int = 8) -> np.ndarray:
    c = np.empty((48, 56), np.float32)
    mt.run(load("21_gemm_block").gemm(48, 56, 40, bM, bN, bK, "f32", stages), A, B, c)
    return c


def test_pipelined_is_serial() -> None:
    first = product(stages=1)
    for stages in (2, 3, 7):
        np.testing.assert_array_equal(product(stages), first)


@pytest.mark.parametrize("tiles", [(16, 16, 8), (48, 56, 40), (64, 64, 64), (7, 5, 3), (1, 56, 9)])
def test_any_tile_size(tiles: tuple[int, int, int]) -> None:
    np.testing.assert_allclose(product(1, *tiles), A @ B, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "rows": T.FullRow,
    "columns": T.FullCol,
    "replica": T.Replica,
    "cyclic": lambda i, j: i % 4,
    "grid": lambda i, j: i // 6 % 2 + 2 * (j // 5 % 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_placement(name: str) -> None:
    layout = LAYOUTS[name]

    @T.program
    def scale(X: T.Tensor((12, 10), "f32"), Y: T.Tensor((12, 10), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                x, y = T.view(X, layout=layout), T.view(Y, layout=layout)
                for i, j in T.Parallel(x.shape[0], x.shape[1]):
                    y[i, j] = x[i, j] * 2.0 + 1.0

    x = RNG.standard_normal((12, 10), dtype=np.float32)
    y = np.zeros_like(x)
    mt.run(scale, x, y)
    np.testing.assert_array_equal(y, x * 2 + 1)
