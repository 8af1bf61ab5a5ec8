"""Expressions: folding, types, text."""

from megatile.core.expr import (
    Const,
    Symbol,
    walk,
)
from megatile.core.expr.typing import apply


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
