"""What a condition says about the coordinates of a unit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megatile.core.expr import Binary, Expr, Symbol, linear, simplify
from megatile.targets.cuda.scope import DeviceScope

_OPPOSITE = {">=": "<", "<": ">=", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}
Ranges = dict[str, tuple[int, int]]


@contextmanager
def assumed(scope: DeviceScope, condition: Expr, holds: bool = True) -> Iterator[None]:
    """Inside, coordinates have only the values that a condition leaves them; others keep their bounds."""
    before = dict(scope.ranges)
    scope.ranges.update(narrowed(scope.own(condition), before, holds))
    yield
    scope.ranges.clear()
    scope.ranges.update(before)


def narrowed(condition: Expr, known: Ranges, holds: bool = True) -> Ranges:
    """The bounds of coordinates where a condition holds, or does not: ``wg >= 1`` of 0..2 is 1..2."""
    if not isinstance(condition, Binary):
        return {}
    if condition.operator == ("and" if holds else "or"):
        first = narrowed(condition.left, known, holds)
        return first | narrowed(condition.right, known | first, holds)
    if condition.operator not in _OPPOSITE:
        return {}
    operator = condition.operator if holds else _OPPOSITE[condition.operator]
    terms, offset = linear(simplify(condition.left - condition.right))
    if len(terms) != 1:
        return {}
    (term, factor), *_ = terms.items()
    if not isinstance(term, Symbol) or not term.name.startswith("@") or abs(factor) != 1:
        return {}
    low, high = known[term.name]
    least, most = _between(operator if factor == 1 else _mirrored(operator), -offset * factor, low, high)
    return {term.name: (least, most)} if least <= most else {}


def _mirrored(operator: str) -> str:
    return operator.translate(str.maketrans("<>", "><"))


def _between(operator: str, bound: int, low: int, high: int) -> tuple[int, int]:
    """The values from low to high that stand so to a bound; all, where those are no range."""
    if operator == "!=":
        return low + (low == bound), high - (high == bound)
    least = {">=": bound, ">": bound + 1, "==": bound}.get(operator, low)
    most = {"<=": bound, "<": bound - 1, "==": bound}.get(operator, high)
    return max(low, least), min(high, most)
