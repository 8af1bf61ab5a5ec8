"""``core/expr/simplify.py``: what is known of a whole-number expression."""

from hypothesis import given, strategies as st
from tests.core.shared import EXPRESSIONS

from megatile.core.expr import (
    DIVISIONS,
    Const,
    Symbol,
    applied,
    difference,
    divide,
    known,
    simplify,
    substitute,
    unit,
)


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


NAMES = ("i", "j", "k")


OPS = ("+", "-", "*", "//", "%", "max", "min", "ceildiv")


def expressions() -> st.SearchStrategy:
    leaves = st.one_of(st.integers(-5, 5).map(Const), st.sampled_from(NAMES).map(Symbol))

    def grow(inner: st.SearchStrategy) -> st.SearchStrategy:
        return st.builds(
            lambda op, a, b: applied(op, (a, b if op not in DIVISIONS else Const(3))),
            st.sampled_from(OPS),
            inner,
            inner,
        )

    return st.recursive(leaves, grow, max_leaves=8)


def evaluate(expr, values: dict[str, int]) -> int:
    return known(substitute(expr, {name: Const(v) for name, v in values.items()}))


@given(expressions(), st.tuples(*(st.integers(-9, 9) for _ in NAMES)))
def test_simplify_keeps_the_value(expr, numbers) -> None:
    values = dict(zip(NAMES, numbers, strict=True))
    assert evaluate(simplify(expr), values) == evaluate(expr, values)


@given(expressions())
def test_simplify_is_stable(expr) -> None:
    once = simplify(expr)
    assert simplify(once) == once


@given(expressions(), expressions())
def test_difference(left, right) -> None:
    assert known(difference(applied("+", (left, right)), right)) == known(left)
    assert known(difference(left, left)) == 0


def test_extents_of_slices_become_numbers() -> None:
    k, size = Symbol("k"), Const(64)
    start = applied("*", (k, size))
    stop = applied("*", (applied("+", (k, Const(1))), size))
    assert known(difference(stop, start)) == 64
