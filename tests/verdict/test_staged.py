"""``verdict/staged.py``: loops over elements of tensors work on tiles, with the same results."""

from typing import Any

import numpy as np
import pytest
from tests.verdict.flawed import transposed

import megatile as mt
import megatile.language as T
from megatile.verdict.staged import in_tiles


@T.program
def mixed(X: T.Tensor((12, 8), "f32"), V: T.Tensor((8,), "f32"), Y: T.Tensor((8, 12), "f32")):
    with T.Kernel(block=(2, 3), threads=32) as (bx, by):
        for i, j in T.Parallel(4, 4):
            Y[bx * 4 + j, by * 4 + i] = X[by * 4 + i, bx * 4 + j] * V[bx * 4 + j] + X[by * 4 + i, 0]


@T.program
def diagonal(X: T.Tensor((8, 8), "f32"), Y: T.Tensor((8, 8), "f32")):
    with T.Kernel(block=1, threads=32):
        for i in T.Parallel(8):
            Y[i, i] = X[i, 0]


@pytest.mark.parametrize(
    "program", [transposed(False, n=8, b=4), mixed], ids=["transpose", "vector and column"]
)
def test_the_same_is_computed(program: Any) -> None:
    source = program.build("hgx-a100")
    staged = in_tiles(source)
    assert "copy(" not in str(source)
    assert "copy(Y[" in str(staged)
    rng = np.random.default_rng(0)
    arrays = [rng.random(tuple(map(int, p.shape)), dtype="f4") for p in source.params]
    others = [a.copy() for a in arrays]
    mt.run(source, *arrays, machine="hgx-a100")
    mt.run(staged, *others, machine="hgx-a100")
    np.testing.assert_array_equal(others[-1], arrays[-1])


def test_elements_that_make_no_box_stay() -> None:
    source = diagonal.build("hgx-a100")
    assert in_tiles(source) is source
