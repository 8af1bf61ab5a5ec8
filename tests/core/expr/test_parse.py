"""``core/expr/parse.py``: reads the text form of expressions."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.core.shared import EXPRESSIONS

from megatile.core.expr import ExprError, expr, expression, unit


@given(EXPRESSIONS)
def test_text_reads_back(node):
    again = expression(node.text())
    assert again == node


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("unit and k", "(unit != 0) & (k != 0)"),
        ("unit or k", "(unit != 0) | (k != 0)"),
        ("ceildiv(unit, 4)", "(unit + 3) // 4"),
    ],
)
def test_plans_have_few_operators(text, spelt):
    assert str(expression(text)) == spelt


def test_conditions_and_numbers_are_not_known():
    with pytest.raises(ExprError, match=r"the value of 'unit < 3' is not known.*If\(...\) or select"):
        bool(unit < 3)
    with pytest.raises(ExprError):
        list(range(unit))
    with pytest.raises(ExprError, match="is not an integer"):
        expr("x")
    with pytest.raises(ExprError, match="is not an integer expression"):
        expression("unit ** 2")
