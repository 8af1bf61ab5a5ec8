"""``core/expr/simplify.py``: what is known of a whole-number expression."""

from __future__ import annotations

from hypothesis import given, strategies as st
from tests.core.shared import EXPRESSIONS

from megatile.core.expr import divide, simplify, unit


@given(EXPRESSIONS, st.integers(1, 9))
def test_division_and_simplification_keep_the_value(node, divisor):
    quotient, rest = divide(node, divisor, {"unit": (0, 4), "k": (0, 2)})
    plain = simplify(node)
    for u in range(5):
        for k in range(3):
            env = {"unit": u, "k": k}
            value = node.evaluate(env)
            assert quotient.evaluate(env) == value // divisor
            assert rest.evaluate(env) == value % divisor
            assert plain.evaluate(env) == value


def test_addresses_of_shards_are_recognised():
    pe, cube = unit % 8, unit // 8
    address = (cube * 8 + pe) * 64 + (unit + 3) % 4 * 16
    owner, inside = divide(address, 64, {"unit": (0, 31)})
    assert owner == unit
    assert inside == (unit + 3) % 4 * 16
