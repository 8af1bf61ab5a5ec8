"""What a reader would take for something else is refused, or means what it says."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile import MegatileError
from megatile.language.tile.errors import ProgramError


def page_of(start: tuple, tile: tuple[int, int] = (8, 8)) -> object:
    @T.program
    def page(K: T.Tensor((2, 8, 4, 8), "f32"), O: T.Tensor(tile, "f32")):
        with T.Kernel(block=4, threads=32) as h:
            t = T.alloc_shared(tile, "f32")
            T.copy(t, K[tuple(h if s == "h" else s for s in start)])
            T.copy(O, t)

    return page.build("dgx-h100")


@pytest.mark.parametrize("start", [(1, 0, "h", 0), (1, 0, 2, 0), (1, 0, 0, 0)])
@pytest.mark.parametrize("rows", [8, 5])
def test_an_anchor_that_can_be_read_in_two_ways_is_refused(start: tuple, rows: int) -> None:
    third = {"h": "block.x"}.get(start[2], start[2])
    rows_text = ":" if rows == 8 else ":5"
    with pytest.raises(ProgramError, match="the anchor .* is ambiguous") as caught:
        page_of(start, (rows, 8))
    assert f"K[1, {rows_text}, {third}, :]" in str(caught.value)


def test_an_anchor_inside_the_last_dimensions_is_refused_where_others_fit() -> None:
    """Rows 1 and 2 of the third dimension, or all of the first two: neither is said."""
    with pytest.raises(ProgramError, match="the anchor .* is ambiguous") as caught:
        page_of((0, 0, 1, 0), (2, 8))
    assert "K[0, 0, 1:1 + 2, :]" in str(caught.value)


@pytest.mark.parametrize("start", [(1, 3, 0, 0), (1, "h", 0, 0), (0, 7, 2, 0)])
def test_the_last_dimensions_are_meant_where_the_tile_fits(start: tuple) -> None:
    page_of(start, (2, 8))


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


def test_a_kernel_without_its_decorator_is_said() -> None:
    def kernel(A: T.Tensor((8,), "f32")) -> None: ...

    with pytest.raises(MegatileError, match="decorate the function with @T.program"):
        mt.lower(kernel)
