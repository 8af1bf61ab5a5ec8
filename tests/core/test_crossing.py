"""``core/crossing.py``: notice units that come to the collectives of tiles in opposite order."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.plan.execute_cases import builder

from megatile.core.errors import Place
from megatile.core.expr import eq, unit
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import PlanError


def in_order(*orders, units=2):
    """Units that all-reduce tiles, each in the order it is given, one line for each command."""
    b = builder(units)
    tiles = {name: b.tile(name, (1,), "f32", memory="l2", role="inout") for name in "abc"}
    everyone = b.group("everyone")
    for number, order in enumerate(orders):
        with b.when(eq(unit, number)):
            for at, name in enumerate(order):
                b.place = Place("kernel.py", 10 * (number + 1) + at)
                b.collective("all_reduce", everyone, tiles[name], tiles[name])
    return b.finish()


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("ab", "ba"), "unit 0 comes to 'a' (kernel.py:10), then 'b' (kernel.py:11); "
                       "unit 1 comes to 'b' (kernel.py:20), then 'a' (kernel.py:21)"),
        (("cacb", "cbca"), "unit 0 comes to 'a' (kernel.py:11), then 'b' (kernel.py:13); "
                           "unit 1 comes to 'b' (kernel.py:21), then 'a' (kernel.py:23)"),
        (("cc", "ab", "ba"), "unit 1 comes to 'a' (kernel.py:20), then 'b' (kernel.py:21); "
                             "unit 2 comes to 'b' (kernel.py:30), then 'a' (kernel.py:31)"),
        (("abc", "bca"),
         "unit 0 comes to 'a' (kernel.py:10), then 'b' (kernel.py:11), then 'c' (kernel.py:12); "
         "unit 1 comes to 'b' (kernel.py:20), then 'c' (kernel.py:21), then 'a' (kernel.py:22)"),
        (("acb", "bca"), "unit 0 comes to 'a' (kernel.py:10), then 'b' (kernel.py:12); "
                         "unit 1 comes to 'b' (kernel.py:20), then 'a' (kernel.py:22)"),
    ],
)  # fmt: skip
def test_tiles_that_are_reduced_in_opposite_order(orders, message):
    plan = in_order(*orders, units=len(orders))
    inputs = {name: np.zeros((len(orders), 1), "f4") for name in "abc"}
    for go in (check, lambda p: execute(p, inputs)):
        with pytest.raises(
            PlanError, match=re.escape(f"'everyone' call collectives in opposite order: {message}")
        ):
            go(plan)


def test_tiles_of_different_names_may_be_reduced_together():
    inputs = {name: np.asarray([[1], [2]], "f4") for name in "abc"}
    found = execute(in_order("aa", "bc"), inputs)
    np.testing.assert_array_equal([found[name] for name in "abc"], [[[5], [2]], [[1], [3]], [[1], [5]]])
    execute(in_order("aabc", "bccc"), inputs)
