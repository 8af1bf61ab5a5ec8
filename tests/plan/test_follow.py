"""``plan/follow.py``: follows the streams of a plan for all units, many at once."""

from __future__ import annotations

from tests.plan.shared import builder, fails, tile

from megatile.core.expr import eq, expr, select, unit
from megatile.plan.follow import PlanDeadlock


def test_skipped_iterations_are_the_same_as_walked_ones():
    """A ring that does not repeat (its last round differs) is still found out."""
    n = 6
    b = builder(n)
    x = tile(b)
    c = b.channel("ring", source=(unit - 1) % n, slot_bytes=32, memory="tcm")
    with b.loop(0, 50) as loop:
        with b.when(select(eq(loop.index, 49), unit > 0, expr(1))):
            b.send(c, x, to=(unit + 1) % n)
        b.receive(c, (8,), "f32", into=x)
    fails(b, "waits for a message", PlanDeadlock)
