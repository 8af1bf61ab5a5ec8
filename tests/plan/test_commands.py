"""``plan/commands.py``: what the walk does at each command."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from tests.plan.shared import HEAD
from tests.sim.random_plans import random_plan

from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.model import Plan, PlanError


def test_a_group_may_have_any_number():
    text = str(random_plan(3))
    assert "all = group(0)" in text
    plan = Plan.from_text(text.replace("all = group(0)", "all = group(2147483648)"))
    tracemalloc.start()
    check(plan)
    (_, most), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
    assert most < 8 << 20


@pytest.mark.parametrize(
    ("read", "write", "message"),
    [
        ("x[4:+8]", "x", "has no elements 4:12"),
        ("x", "x[0:+9]", "has no elements 0:9"),
        ("x[unit:+8]", "x", "has no elements"),
        ("x[0:+4]", "x[0:+8]", r"shapes \(4,\) and \(8,\)"),
        ("x[0:+(4 + unit)]", "x[0:+(4 + unit)]", r"shapes \(4,\) and \(5,\)"),
    ],
)
def test_regions_of_collectives(read, write, message):
    plan = Plan.from_text(HEAD + f'    collective("all_reduce", all, read={read}, write={write}, bytes=32)\n')
    with pytest.raises(PlanError, match=message):
        check(plan)
    with pytest.raises(PlanError, match=message):
        execute(plan, {"x": np.zeros((2, 8), "f4")})


def test_collectives_that_differ_are_found_by_check():
    b = PlanBuilder("differ", scale="pe", units=2)
    x = b.tile("x", (8,), "f32", memory="tcm", role="inout")
    g = b.group("g")
    with b.stream([0]):
        b.collective("all_reduce", g, x, x)
    with b.stream([1]):
        b.collective("all_reduce", g, x, x, reduction="max")
    with pytest.raises(PlanError, match="meet at different collectives"):
        check(b.finish())


def test_a_message_that_does_not_fit_where_it_is_copied():
    text = (
        HEAD
        + "    send(q, x, to=1 - unit, bytes=32)\n    x[0:+1] <- receive(q, f32[8], into=True, bytes=32)\n"
    )
    for one in (check, lambda p: execute(p, {"x": np.zeros((2, 8), "f4")})):
        with pytest.raises(PlanError, match="message of 8 elements does not fit a region of 1"):
            one(Plan.from_text(text))
