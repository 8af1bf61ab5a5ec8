"""``plan/steady.py``: loops that repeat themselves."""

from __future__ import annotations

from tests.plan.shared import EXCHANGE, HEAD

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.model import Plan


def test_long_loops_of_different_lengths_are_not_walked():
    body = EXCHANGE.replace("\n    ", "\n        ") + "        free(m)\n"
    plan = Plan.from_text(HEAD + "    for k in range(0, 1000000000, 1):" + body)
    assert check(plan).messages == 2 * 10**9
    b = PlanBuilder("uneven", scale="pe", units=3)
    x = b.tile("x", (8,), "f32", memory="tcm")
    with b.loop(0, unit * 1000 + 10**9):
        b.compute("add", x, [x, x])
    check(b.finish())
