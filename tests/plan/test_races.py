"""``plan/races.py``: races on storage that several units see."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.execute_cases import builder, put_without_order

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.execute import execute
from megatile.plan.races import RaceError, UncheckedWarning


def test_a_race_names_both_commands_and_lines():
    message = (
        r"kernel.py:20: race on tile 'inbox' of owner \d: unit \d writes in 'inbox @ .*' at kernel.py:10 "
        r"and unit \d reads in 'x <- copy\(inbox.*' at kernel.py:20 are not ordered"
    )
    with pytest.raises(RaceError, match=message):
        execute(put_without_order(None), {"x": np.zeros((2, 2), "f4")})
    execute(put_without_order(None), {"x": np.zeros((2, 2), "f4")}, races=False)


def test_a_plan_too_large_for_the_race_check_says_so():
    def racing(units):
        b = builder(units)
        x = b.tile("x", (1,), "f32", memory="l2", role="inout")
        b.copy(x.at((unit + 1) % units), x)
        return b.finish()

    with pytest.raises(RaceError):
        execute(racing(64), {"x": np.zeros((64, 1), "f4")})
    with pytest.warns(UncheckedWarning, match="5000 units, the check can follow 4096"):
        execute(racing(5000), {"x": np.zeros((5000, 1), "f4")})


def test_units_that_share_a_tile_and_write_apart_do_not_race():
    def plan(overlap):
        b = builder(4)
        total = b.tile("total", (8,), "f32", memory="l2", role="output", owner=unit // 2, owners=2)
        x = b.tile("x", (4,), "f32", memory="l1", role="input")
        start = unit % 2 * (4 - overlap)
        b.copy(total[start : start + 4], x)
        return b.finish()

    x = np.arange(16, dtype="f4").reshape(4, 4)
    np.testing.assert_array_equal(execute(plan(0), {"x": x})["total"], x.reshape(2, 8))
    with pytest.raises(RaceError, match="race on tile 'total' of owner 0"):
        execute(plan(1), {"x": x})


def test_without_the_flag_a_child_races_with_its_parent():
    b = PlanBuilder("race", scale="device", units=1)
    part = b.level("part", scale="sm", grid=2, parent="device")
    x = b.tile("x", (8,), "f32", memory="hbm", role="inout")
    y = b.tile("y", (8,), "f32", memory="smem", level=part)
    b.compute("add", x, [x, x])
    with b.stream(level=part):
        b.copy(y, x)
    with pytest.raises(RaceError, match=r"(part \d|unit 0) .*(part \d|unit 0)"):
        execute(b.finish(), {"x": np.zeros((1, 8), "f4")})
