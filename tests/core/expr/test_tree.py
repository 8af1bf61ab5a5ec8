"""``core/expr/tree.py``: one tree of expressions for Plans and Programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.core.shared import EXPRESSIONS

from megatile.core.expr import Symbol, bounds, ceil_div, expr, select, substitute, symbols, table, unit
from megatile.plan.cached_values import MAX_CACHED_NUMBERS, CachedValues


@given(EXPRESSIONS)
def test_ints_and_arrays_agree(node):
    units, k = np.arange(5), 3
    each = [node.evaluate({"unit": int(u), "k": k}) for u in units]
    together = np.broadcast_to(node.evaluate({"unit": units, "k": k}), len(units))
    assert each == together.tolist()


@given(EXPRESSIONS)
def test_bounds_hold(node):
    limits = bounds(node, {"unit": (0, 4), "k": (0, 2)})
    values = [node.evaluate({"unit": u, "k": k}) for u in range(5) for k in range(3)]
    if limits is not None:
        assert limits[0] <= min(values)
        assert max(values) <= limits[1]


def test_python_spelling():
    assert str((unit + 1) % 8) == "(unit + 1) % 8"
    assert str(-unit + 3) == "-unit + 3"
    assert str(unit - (unit - 1)) == "unit - (unit - 1)"
    assert str(ceil_div(unit, 4)) == "(unit + 3) // 4"


def test_folding():
    k = Symbol("k")
    assert unit + 1 + 2 == unit + 3
    assert unit * 0 == expr(0)
    assert (unit - unit) + 5 == expr(5)
    assert select(1, k, unit) is k
    assert table([4, 4, 4], unit) == expr(4)
    assert substitute(unit + k, {"k": 2}) == unit + 2
    assert symbols(unit + k * 2) == {"unit", "k"}


@given(st.lists(EXPRESSIONS, min_size=1, max_size=4), st.integers(1, 3), st.data())
def test_cached_values_are_those_computed_again(nodes, units, data):
    """Whatever comes in between: other units, other ints, arrays in place of ints."""
    values = CachedValues(
        MAX_CACHED_NUMBERS // units
    )  # keeps as many values as there are units here: some are forgotten
    functions = [(node, values.function(node), values.even(node)) for node in nodes]
    places = [np.arange(5), np.arange(3, 5), np.arange(0, 10, 2), 4]
    for _ in range(8):
        of = data.draw(st.sampled_from(places))
        k = data.draw(st.integers(-2, 2))
        if isinstance(of, np.ndarray) and data.draw(st.booleans()):
            k = np.arange(len(of)) + k
        env = {"unit": of, "k": k}
        for node, function, even in functions:
            right = node.evaluate(env)
            for found in (function(env), even(env)):
                assert np.array_equal(np.broadcast_to(found, np.shape(right)), right)
            assert isinstance(even(env), int) or len(set(even(env).tolist())) > 1


def test_cached_arrays_cannot_be_changed():
    values = CachedValues(4)
    env = {"unit": np.arange(4)}
    found = values.function(unit + 1)(env)
    assert values.function(unit + 1)(env) is found
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 7
