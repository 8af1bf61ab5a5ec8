"""``collectives/blocks.py``: ranges of elements divided as NumPy divides them."""

import numpy as np
from hypothesis import given, strategies as st

from megatile.collectives.blocks import Blocks, joined
from megatile.core.expr import expr, unit


def number(value: object, **known: int) -> int:
    return int(expr(value).evaluate(known))  # type: ignore[arg-type]


@given(st.integers(0, 200), st.integers(1, 9), st.integers(0, 50))
def test_blocks_are_those_of_array_split(count: int, parts: int, base: int) -> None:
    wanted = np.array_split(np.arange(base, base + count), parts)
    for blocks, known in (
        (Blocks(count, parts, base), {}),
        (Blocks(unit, parts, base, limit=count), {"unit": count}),  # known only to the unit
    ):
        assert [number(blocks.length(i), **known) for i in range(parts)] == [len(w) for w in wanted]
        assert [number(blocks.start(i), **known) for i in range(parts) if len(wanted[i])] == [
            int(w[0]) for w in wanted if len(w)
        ]
        assert number(blocks.start(parts), **known) == base + count
        assert blocks.most == max(len(w) for w in wanted)


@given(st.integers(0, 100), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_neighbouring_blocks_join_and_blocks_divide_again(
    count: int, first: int, width: int, parts: int
) -> None:
    finer = Blocks(count, first + width * parts)
    ends = [number(finer.start(i)) for i in range(finer.parts + 1)]
    wide = joined(finer, first, width, parts)
    for i in range(parts):
        assert number(wide.start(i)) == ends[first + i * width]
        assert number(wide.length(i)) == ends[first + (i + 1) * width] - ends[first + i * width]
    inner = finer.inside(first, 2)
    assert number(inner.start(0)) == ends[first]
    assert number(inner.length(0)) + number(inner.length(1)) == ends[first + 1] - ends[first]
