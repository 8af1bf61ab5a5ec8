"""``plan/counts.py``: how many commands a plan issues."""

from megatile.core.expr import unit
from megatile.plan.build import PlanBuilder
from megatile.plan.counts import command_count
from megatile.plan.model import Plan


def nested(inner: object) -> Plan:
    b = PlanBuilder("nested", scale="device", units=3)
    x = b.tile("x", (8,), "f32", memory="hbm")
    b.compute("add", x, [x, x])
    with b.loop(0, 10):
        with b.loop(0, inner):  # type: ignore[arg-type]
            b.compute("add", x, [x, x])
        with b.when(unit < 1):
            b.compute("mul", x, [x, x])
    return b.finish()


def test_rounds_multiply_and_a_branch_counts_as_its_longer_side() -> None:
    assert command_count(nested(4)) == 3 * (1 + 10 * (4 + 1))


def test_control_flow_counts_as_asked_for() -> None:
    inner = 4 * (1 + 2) + 2
    assert command_count(nested(4), 1) == 3 * (1 + 10 * (inner + (1 + 1) + 2) + 2)


def test_a_loop_of_unknown_length_counts_as_eight_rounds() -> None:
    assert command_count(nested(unit)) == 3 * (1 + 10 * (8 + 1))
