"""``language/common/transform.py``: the transformation behind ``rewrite.py``."""

from __future__ import annotations

import pytest

from megatile.language.common.hooks import Hooks
from megatile.language.common.rewrite import RewriteError, bind


def test_with_two_names_is_a_tuple():
    class Pair:
        def __enter__(self):
            return 1, 2

        def __exit__(self, *_):
            return None

    def kernel():
        with Pair() as first, second:
            return first + second

    assert bind(kernel, Hooks())() == 3


def uses_global():
    global OUTSIDE
    OUTSIDE = []


def test_refusals_name_line_and_advice():
    with pytest.raises(RewriteError, match=r"test_transform.py:\d+: 'global' is not supported.*return"):
        bind(uses_global, Hooks())

    x = 1

    def uses_nonlocal():
        nonlocal x
        x = 2

    with pytest.raises(RewriteError, match="'nonlocal' is not supported"):
        bind(uses_nonlocal, Hooks())

    def walrus():
        return (y := 3) + y

    with pytest.raises(RewriteError, match="':=' is not supported"):
        bind(walrus, Hooks())

    def loop_else():
        for _ in range(3):
            pass
        else:
            return 1

    with pytest.raises(RewriteError, match=r"for .*else"):
        bind(loop_else, Hooks())

    with pytest.raises(RewriteError, match="is not a Python function"):
        bind(len, Hooks())


def test_a_branch_may_change_a_variable_that_nothing_reads_after_it():
    def kernel(me, seen):
        x = 1
        if me == 3:
            seen.append(x)
        elif me > 0:
            x = x + 10
            seen.append(x)

    for me, expected in ((3, [1]), (2, [11]), (0, [])):
        seen: list[int] = []
        bind(kernel, Hooks())(me, seen)
        assert seen == expected
