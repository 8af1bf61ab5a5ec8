"""Rewritten functions under the plain builder do what the originals do; what cannot be read is refused with
its line.
"""

from __future__ import annotations

import pytest
from tests.language.common.shared import OUTSIDE, loops

from megatile.language.common.hooks import Hooks
from megatile.language.common.rewrite import bind


def early(n):
    if n <= 0:
        return "none"
    if n == 1:
        word = "one"
    elif 1 < n < 5 and n != 3:
        return f"few {n}"
    else:
        word = "many"
        for k in range(n):
            if k == 4:
                return (word, k)
    return word


def helper(x):
    return x * 2 if x % 2 else x


def expressions(n):
    table = {"a": [1, 2, 3]}
    table["a"][1] += n
    table["b"] = [helper(v) for v in OUTSIDE if v != n]
    pair = (n, n + 1)
    a, b = pair
    square = lambda v: v * v  # noqa: E731

    def inner(q):
        for i in range(3):
            if i == q:
                return i * 10
        return -1

    assert a < b, "pairs grow"
    return (
        table,
        a,
        b,
        square(n),
        inner(n),
        n in OUTSIDE,
        n is None,
        table["a"][0:2],
        sorted(OUTSIDE, key=lambda v: -v),
    )


def nested(n):
    out = []
    for i in range(n):
        row = None
        for j in range(n):
            if j == i:
                row = j
                break
        if row is None:
            continue
        out.append((i, row))
        last = row
    try:
        value = out[99]
    except IndexError:
        value = None
    return out, value, last if n else 0


@pytest.mark.parametrize("function", [loops, early, expressions, nested])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 9, 12])
def test_same_as_python(function, n):
    assert bind(function, Hooks())(n) == function(n)


def test_places_name_file_line_and_column():
    seen = []

    class Spy(Hooks):
        def call(self, place, function, /, *arguments, **keywords):
            seen.append(place)
            return super().call(place, function, *arguments, **keywords)

    bind(helper_with_call, Spy())(3)
    place = next(p for p in seen if "abs(" in p.snippet)
    assert place.file == __file__
    assert place.snippet[place.column - 1 :].startswith("abs(")


def helper_with_call(x):
    return 1 + abs(x)


def test_rewriting_is_done_once_per_function():
    from megatile.language.common import rewrite

    bind(helper, Hooks())
    before = len(rewrite._CACHE)
    bind(helper, Hooks())
    assert len(rewrite._CACHE) == before
