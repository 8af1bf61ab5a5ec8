"""What several files of tests/core share."""

from __future__ import annotations

from hypothesis import strategies as st

from megatile.core.expr import OPERATORS, Symbol, binary, expr, select, table

NAMES = ("unit", "k")
LEAVES = st.one_of(st.integers(-9, 9).map(expr), st.sampled_from([Symbol(n) for n in NAMES]))
UNUSED = ("<<", ">>", "and", "or", "ceildiv")  # shifts: below; the others are spelt out when read
SAFE = [o.name for o in OPERATORS.values() if o.rule and o.arity == 2 and o.name not in UNUSED]


def _grow(inner):
    return st.one_of(
        st.builds(binary, st.sampled_from(SAFE), inner, inner),
        st.builds(select, inner, inner, inner),
        st.builds(table, st.lists(st.integers(-5, 5), min_size=1, max_size=4), inner),
        st.builds(lambda a, n: a << n, inner, st.integers(0, 3)),
        st.builds(lambda a, n: a >> n, inner, st.integers(0, 3)),
    )


EXPRESSIONS = st.recursive(LEAVES, _grow, max_leaves=8)
