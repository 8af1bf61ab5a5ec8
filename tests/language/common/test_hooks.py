"""``language/common/hooks.py``: the hooks that rewritten kernels call, with Python's own meaning."""

from __future__ import annotations

import pytest
from tests.language.common.shared import loops

from megatile.language.common.hooks import Hooks, UnboundVariableError
from megatile.language.common.rewrite import bind


def test_keywords_defaults_and_closures():
    extra = 5

    def kernel(a, b=2, *rest, c=3, **more):
        return a + b + c + extra + sum(rest) + sum(more.values())

    assert bind(kernel, Hooks())(1, 2, 3, c=4, d=5) == kernel(1, 2, 3, c=4, d=5)
    assert bind(loops, Hooks())(5, 1, step=2) == loops(5, 1, step=2)


def test_unbound_variable_is_named():
    def kernel(n):
        if n:
            value = 1
        return value + 1

    assert bind(kernel, Hooks())(1) == 2
    with pytest.raises(UnboundVariableError, match="'value' has no value here"):
        bind(kernel, Hooks())(0)
