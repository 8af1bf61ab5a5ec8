"""``lowering/passes/place_tiles.py``: where tensors and tiles lie, and how many versions of a tile there
are."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lowering.shared import pipelined, text_after

import megatile as mt
import megatile.language as T


def test_place_tiles() -> None:
    lines = text_after(mt.lower(pipelined), "place_tiles")
    assert lines[0].startswith('def pipelined(A: f16[64, 96] @ home("hbm", "device"), B: f16[96, 64] @ home(')
    assert 'a = alloc((64, 32), "f16", "shared", "block", versions=2)' in lines
    assert (
        'c = alloc((64, 64), "f32", "registers", "block", parts=(part("warpgroup", replica()),), slices=2)'
        in lines
    )
    assert 'for k in pipelined(0, 3, 1, stages=2, fresh=("a", "b")):' in lines


def halves(rows: int, early: bool = False):
    """Two copies fill parts of one tile; all of it where ``rows`` is 32."""

    @T.program
    def summed(X: T.Tensor((64, 64), "f32"), Y: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, threads=32):
            x = T.alloc((64, 16), "f32", level="l1")
            y = T.alloc((64,), "f32")
            T.clear(x)
            T.clear(y)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(x[0:32, :], X[0:32, k * 16 : k * 16 + 16])
                if early:
                    T.reduce_sum(x, y, dim=1, clear=False)
                T.copy(x[32 : 32 + rows, :], X[32 : 32 + rows, k * 16 : k * 16 + 16])
                T.reduce_sum(x, y, dim=1, clear=False)
            T.copy(Y, y)

    return summed


@pytest.mark.parametrize(("rows", "early", "versions"), [(32, False, 2), (31, False, 1), (32, True, 1)])
def test_copies_of_parts_that_are_all_of_a_tile_begin_a_version(rows, early, versions) -> None:
    program = halves(rows, early)
    assert {t.name: t.versions for t in mt.lower(program).plan.tiles}["x"] == versions
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    judge = np.zeros(64, np.float32)
    mt.run(program, x, judge)
    np.testing.assert_array_equal(mt.execute(program, x, np.zeros(64, np.float32))["Y"], judge)


def rows_of(count: int, second: int = 1):
    """Rows 0 and ``second`` of a tile are filled, each named by its number."""

    @T.program
    def summed(X: T.Tensor((2, 64), "f32"), Y: T.Tensor((2,), "f32")):
        with T.Kernel(block=1, threads=32):
            x, y = T.alloc((count, 16), "f32", level="l1"), T.alloc((count,), "f32")
            T.clear(x)
            T.clear(y)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(x[0, :], X[0, k * 16 : k * 16 + 16])
                T.copy(x[second, :], X[1, k * 16 : k * 16 + 16])
                T.reduce_sum(x, y, dim=1, clear=False)
            T.copy(Y[0:2], y[0:2])

    return summed


@pytest.mark.parametrize(("rows", "second", "versions"), [(2, 1, 2), (3, 1, 1), (2, 0, 1)])
def test_rows_that_are_all_of_a_tile_begin_a_version(rows, second, versions) -> None:
    assert {t.name: t.versions for t in mt.lower(rows_of(rows, second)).plan.tiles}["x"] == versions
