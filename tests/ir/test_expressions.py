"""Expressions: folding, types, text."""

import pytest
from hypothesis import given, strategies as st

from megatile.core.errors import MegatileError
from megatile.core.expr import (
    DIVISIONS,
    Const,
    Symbol,
    applied,
    difference,
    known,
    simplify,
    substitute,
    walk,
)
from megatile.core.expr.typing import apply, promote, result_type

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


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ("f16", "int", "f16"),
        ("f16", "float", "f16"),
        ("i32", "float", "f32"),
        ("i32", "f16", "f16"),
        ("bf16", "f16", "f32"),
        ("f16", "f32", "f32"),
        ("i8", "u8", "i32"),
        ("i8", "i32", "i32"),
        ("bool", "f32", "f32"),
        ("int", "float", "float"),
        ("bool", "int", "int"),
    ],
)
def test_promotion(left: str, right: str, result: str) -> None:
    assert promote(left, right) == promote(right, left) == result


def test_result_types() -> None:
    assert result_type("<", ("f32", "f32")) == "bool"
    assert result_type("exp", ("i32",)) == "f32"
    assert result_type("exp", ("f16",)) == "f16"
    assert result_type("/", ("int", "int")) == "float"
    assert result_type("select", ("bool", "f16", "float")) == "f16"


def test_bitwise_operators_need_whole_numbers() -> None:
    with pytest.raises(MegatileError, match=r"'<<' needs whole numbers, not f32, int.*T.cast"):
        apply("<<", Symbol("x", "f32"), Const(1))


def test_parentheses() -> None:
    i, j = Symbol("i"), Symbol("j")
    product = apply("*", apply("+", i, j), Const(2))
    assert product.text() == "(i + j) * 2"
    assert apply("-", i, apply("-", j, Const(1))).text() == "i - (j - 1)"
    assert (
        apply("and", apply("<", i, j), apply("not", apply("==", i, Const(0)))).text()
        == "i < j and not i == 0"
    )
    assert Const(float("inf"), "float").text() == "inf"
    assert len(list(walk(product))) == 5
