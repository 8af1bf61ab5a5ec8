"""``lowering/units.py``: coordinates of a Program as arithmetic on ``unit``."""

import pytest
from tests.ir.shared import program

from megatile.core.expr import Symbol, expr, unit
from megatile.ir.expr import Rank
from megatile.lowering.units import NotStatic, Place, at_least, split_number, tidy

LAUNCH = program('with scale("device"):\n    fence()').launch  # 2 devices of 4 blocks of 2 warp groups


def test_ranks_are_made_of_the_indices_of_all_scales_between() -> None:
    place = Place(LAUNCH, tuple(split_number(unit, [2, 4, 2])))
    values = [place.whole(Rank("warpgroup", "device"), {}).evaluate({"unit": u}) for u in range(16)]
    assert values == [u % 8 for u in range(16)]
    assert place.whole(Rank("device", "launch"), {}).evaluate({"unit": 11}) == 1


def test_what_data_decide_is_not_static() -> None:
    place = Place(LAUNCH, (unit,))
    assert place.whole(Symbol("k") + 1, {"k": unit}).evaluate({"unit": 4}) == 5
    with pytest.raises(NotStatic):
        place.whole(Symbol("k"), {})


def test_known_ranges_shorten_expressions() -> None:
    ranges = {"unit": (0, 7)}
    assert tidy(unit % 8, ranges) == unit
    assert at_least(unit + 1, 1, ranges)
    assert not at_least(unit - 1, 0, ranges)
    assert split_number(unit, [1, 4])[0] == expr(0)
