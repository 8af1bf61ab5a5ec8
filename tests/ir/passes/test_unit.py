"""``ir/passes/unit.py``: where a statement runs, and what is known of the numbers there."""

from tests.ir.shared import program

from megatile.core.expr import Symbol, expr
from megatile.ir.expr import Rank
from megatile.ir.passes.unit import Unit

LOOPS = """
with scale("device"):
    with scale("block"):
        for k in serial(0, 4, 1):
            for i, j in parallel(8, 2):
                A[i, j] = 1.0
"""
P = program(LOOPS)
(DEVICE,) = P.body
(BLOCK,) = DEVICE.body
(LOOP,) = BLOCK.body


def test_loops_tell_the_range_of_their_variables() -> None:
    unit = Unit(P.launch).within(DEVICE).within(BLOCK).within(LOOP).within(LOOP.body[0])
    assert unit.interval(Symbol("k") * 8 + Symbol("i")) == (0, 31)
    assert unit.is_inside(Symbol("k") * 2, expr(2), expr(8))
    assert not unit.is_inside(Symbol("k") * 2, expr(3), expr(8))
    assert unit.after(LOOP).interval(Symbol("unknown")) is None


def test_a_unit_knows_its_groups_and_their_size() -> None:
    unit = Unit(P.launch).within(DEVICE).within(BLOCK)
    assert unit.group_of("device") == (0, 1)
    assert unit.interval(Rank("block", "device")) == (0, 3)
    assert unit.is_itself(unit.rank(*unit.group), None, unit.group)
    assert unit.other(Rank("block", "device") + 1, None, None).peer[0].text().endswith("% 4")
