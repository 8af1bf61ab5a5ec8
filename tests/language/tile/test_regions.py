"""``language/tile/regions.py``: what an operand of a tile operation denotes."""

from __future__ import annotations

import pytest

import megatile.language as T
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
