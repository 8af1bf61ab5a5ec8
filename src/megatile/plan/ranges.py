"""What is known of an expression's value: bounds, linear form, exact division.

>>> from megatile.plan.expr import unit
>>> divide((unit // 4) * 32 + (unit % 4) * 8 + 5, 8, {"unit": (0, 15)})
(Symbol('unit'), Const(5))
"""

from __future__ import annotations

from collections.abc import Mapping

from megatile.plan.expr import (
    ZERO,
    Binary,
    Const,
    Expr,
    IntLike,
    Select,
    Symbol,
    Table,
    constant,
    expr,
)

Interval = tuple[int, int]
Ranges = Mapping[str, Interval]


def bounds(node: IntLike, ranges: Ranges) -> Interval | None:
    """The smallest and largest value the expression can have, or None if unknown."""
    node = expr(node)
    if isinstance(node, Const):
        return node.value, node.value
    if isinstance(node, Symbol):
        return ranges.get(node.name)
    if isinstance(node, Table):
        return min(node.values), max(node.values)
    if isinstance(node, Select):
        a, b = bounds(node.then, ranges), bounds(node.otherwise, ranges)
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))
    assert isinstance(node, Binary)
    if node.operator in ("<", "<=", ">", ">=", "==", "!="):
        return 0, 1
    left, right = bounds(node.left, ranges), bounds(node.right, ranges)
    if node.operator == "%" and right is not None and right[0] > 0:
        inside = left is not None and left[0] >= 0 and left[1] < right[0]
        return left if inside else (0, right[1] - 1)
    if left is None or right is None:
        return None
    return _combine(node.operator, left, right)


def _combine(operator: str, a: Interval, b: Interval) -> Interval | None:
    if operator == "+":
        return a[0] + b[0], a[1] + b[1]
    if operator == "-":
        return a[0] - b[1], a[1] - b[0]
    if operator == "*":
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if operator == "//" and b[0] > 0:
        corners = [x // y for x in a for y in b]
        return min(corners), max(corners)
    if operator == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if operator == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if operator in ("&", "|", "^") and a[0] >= 0 and b[0] >= 0:
        return 0, (1 << max(a[1], b[1]).bit_length()) - 1
    return None


def linear(node: Expr) -> tuple[dict[Expr, int], int]:
    """The expression as a sum of integer multiples of other expressions, plus a constant."""
    if isinstance(node, Const):
        return {}, node.value
    if isinstance(node, Binary):
        if node.operator in ("+", "-"):
            terms, offset = linear(node.left)
            others, other = linear(node.right)
            sign = 1 if node.operator == "+" else -1
            for atom, factor in others.items():
                terms[atom] = terms.get(atom, 0) + sign * factor
            return {a: f for a, f in terms.items() if f}, offset + sign * other
        if node.operator == "*":
            for side, other_side in ((node.left, node.right), (node.right, node.left)):
                times = constant(other_side)
                if times is not None:
                    terms, offset = linear(side)
                    return {a: f * times for a, f in terms.items() if f * times}, offset * times
    return {node: 1}, 0


def from_linear(terms: Mapping[Expr, int], offset: int) -> Expr:
    """The sum again, with ``(a // m) * m + a % m`` put together to ``a``."""
    left = dict(terms)
    for atom in list(left):
        if isinstance(atom, Binary) and atom.operator == "//" and isinstance(atom.right, Const):
            rest = Binary("%", atom.left, atom.right)
            factor = left.get(rest, 0)
            if factor and left.get(atom) == factor * atom.right.value:
                del left[atom], left[rest]
                inner, extra = linear(atom.left)
                offset += extra * factor
                for part, count in inner.items():
                    left[part] = left.get(part, 0) + count * factor
    total: Expr = ZERO
    for atom, factor in left.items():
        total = total + atom * factor
    return total + offset


def divide(node: IntLike, divisor: int, ranges: Ranges) -> tuple[Expr, Expr]:
    """Quotient and remainder, simplified where the bounds allow it."""
    node = expr(node)
    terms, offset = linear(node)
    whole = {a: f // divisor for a, f in terms.items() if f % divisor == 0}
    rest = from_linear({a: f for a, f in terms.items() if f % divisor}, offset % divisor)
    within = bounds(rest, ranges)
    if within is not None and within[0] >= 0 and within[1] < divisor:
        return from_linear(whole, offset // divisor), rest
    return node // divisor, node % divisor


def split(node: IntLike, divisor: int, ranges: Ranges) -> tuple[Expr, Expr]:
    """Like ``divide``, but where the bounds are unknown the multiples of ``divisor`` are the quotient.

    The rest is then only presumed to lie in 0..divisor; whoever uses it must check that.
    """
    terms, offset = linear(expr(node))
    whole = {a: f // divisor for a, f in terms.items() if f % divisor == 0}
    rest = from_linear({a: f for a, f in terms.items() if f % divisor}, offset % divisor)
    if bounds(rest, ranges) is None:
        return from_linear(whole, offset // divisor), rest
    return divide(node, divisor, ranges)


def simplify(node: IntLike) -> Expr:
    """The expression through its linear form."""
    return from_linear(*linear(expr(node)))
