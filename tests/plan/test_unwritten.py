"""``plan/unwritten.py``: tiles that are read before they are written."""

import numpy as np
import pytest

from megatile.plan.execute import execute
from megatile.plan.model import Plan, PlanError
from megatile.plan.unwritten import check_first_reads

TEXT = """
plan("sum", scale="pe", grid=(4,))
x = tile(f32, (8,), memory="tcm", role="inout")
acc = tile(f32, (8,), memory="tcm")
with units((0, 4, 1)):
    BEFORE
    for k in range(0, 2, 1):
        acc <- add(acc, x, flops=8, bytes=96)
    x <- copy(acc, bytes=32)
"""


def plan(before: str) -> Plan:
    return Plan.from_text(TEXT.replace("BEFORE", before))


def test_a_tile_that_is_added_to_before_it_is_written_is_refused() -> None:
    with pytest.raises(
        PlanError, match=r"tile 'acc' is read before anything has written it: acc <- add\(acc"
    ):
        check_first_reads(plan(""))


COPY = "acc <- copy(x, bytes=32)"


@pytest.mark.parametrize("before", [COPY, f"if unit % 2 == 0:\n        {COPY}\n    else:\n        {COPY}"])
def test_tiles_that_may_have_been_written_are_not_judged(before: str) -> None:
    check_first_reads(plan(before))
    assert (np.asarray(execute(plan(before), {"x": np.ones((4, 8), "f4")})["x"]) == 3).all()
