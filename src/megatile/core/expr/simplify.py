"""What is known of a whole-number expression: bounds, sums of products in one order, exact division.

>>> from megatile.core.expr import unit
>>> divide((unit // 4) * 32 + (unit % 4) * 8 + 5, 8, {"unit": (0, 15)})
(Symbol('unit'), Const(5))

``simplify((k + 1) * 64 - k * 64)`` is ``64``: extents of slices become numbers this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatile.core.expr.operators import DIVISIONS, OPERATORS
from megatile.core.expr.tree import (
    ONE,
    ZERO,
    Applied,
    Binary,
    Call,
    Const,
    Expr,
    IntLike,
    Select,
    Symbol,
    Table,
    expr,
)

Interval = tuple[int, int]
Ranges = Mapping[str, Interval]
Terms = dict[Expr, int]


def bounds(node: IntLike, ranges: Ranges) -> Interval | None:
    """Return the smallest and largest value the expression can have, or None if unknown."""
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
    if not isinstance(node, Binary):
        return None
    if OPERATORS[node.operator].result == "bool":
        return 0, 1
    left, right = bounds(node.left, ranges), bounds(node.right, ranges)
    if node.operator == "%" and right is not None and right[0] > 0:
        inside = left is not None and left[0] >= 0 and left[1] < right[0]
        return left if inside else (0, right[1] - 1)
    if left is None or right is None or node.operator not in _BOUNDS:
        return None
    return _BOUNDS[node.operator](left, right)


def _corners(operator: str) -> Callable[[Interval, Interval], Interval | None]:
    rule = OPERATORS[operator].rule
    assert rule is not None

    def limits(a: Interval, b: Interval) -> Interval | None:
        if operator in DIVISIONS and b[0] <= 0:
            return None
        values = [rule(x, y) for x in a for y in b]
        return min(values), max(values)

    return limits


def _bits(a: Interval, b: Interval) -> Interval | None:
    return (0, (1 << max(a[1], b[1]).bit_length()) - 1) if a[0] >= 0 and b[0] >= 0 else None


_BOUNDS = {name: _corners(name) for name in ("+", "-", "*", "//", "ceildiv", "min", "max")}
_BOUNDS |= dict.fromkeys(("&", "|", "^"), _bits)


def linear(node: Expr) -> tuple[Terms, int]:
    """Return the expression as a sum of integer multiples of other expressions, plus a constant."""
    if isinstance(node, Const) and node.dtype == "int":
        return {}, node.value
    if isinstance(node, Call) and node.operator == "neg" and node.dtype == "int":
        node = Binary("-", ZERO, node.args[0])
    if isinstance(node, Binary) and node.dtype == "int":
        if node.operator in ("+", "-"):
            terms, offset = linear(node.left)
            others, other = linear(node.right)
            sign = 1 if node.operator == "+" else -1
            for atom, factor in others.items():
                terms[atom] = terms.get(atom, 0) + sign * factor
            return {a: f for a, f in terms.items() if f}, offset + sign * other
        if node.operator == "*":
            for side, other_side in ((node.left, node.right), (node.right, node.left)):
                factors, times = linear(other_side)
                if not factors:
                    terms, offset = linear(side)
                    return {a: f * times for a, f in terms.items() if f * times}, offset * times
    return {node: 1}, 0


def from_linear(terms: Mapping[Expr, int], offset: int) -> Expr:
    """Return the sum again, with ``(a // m) * m + a % m`` put together to ``a``."""
    left, todo = dict(terms), list(terms)
    while todo:
        atom = todo.pop(0)
        if isinstance(atom, Binary) and atom.operator == "//" and isinstance(atom.right, Const):
            rest = Binary("%", atom.left, atom.right)
            factor = left.get(rest, 0)
            if factor and left.get(atom) == factor * atom.right.value:
                del left[atom], left[rest]
                inner, extra = linear(atom.left)
                offset += extra * factor
                for part, count in inner.items():
                    left[part] = left.get(part, 0) + count * factor
                todo = list(left)
    total: Expr = ZERO
    for atom, factor in left.items():
        times = abs(factor)
        term = atom if times == 1 and not isinstance(atom, Const) else atom * times
        total = total - term if factor < 0 else term if total is ZERO else total + term
    return total + offset if offset else total


def divide(node: IntLike, divisor: int, ranges: Ranges, presumed: bool = False) -> tuple[Expr, Expr]:
    """Return the quotient and the remainder, simplified where the bounds allow it, or where they are unknown
    and ``presumed`` to allow it."""
    node = expr(node)
    terms, offset = linear(node)
    rest = from_linear({a: f for a, f in terms.items() if f % divisor}, offset % divisor)
    within = bounds(rest, ranges)
    fits = presumed if within is None else within[0] >= 0 and within[1] < divisor
    if fits:
        whole = {a: f // divisor for a, f in terms.items() if f % divisor == 0}
        return from_linear(whole, offset // divisor), rest
    return node // divisor, node % divisor


def split(node: IntLike, divisor: int, ranges: Ranges) -> tuple[Expr, Expr]:
    """Like ``divide``, but where the bounds are unknown the multiples of ``divisor`` are the quotient.

    The rest is then only presumed to lie in 0..divisor; whoever uses it must check that.
    """
    return divide(node, divisor, ranges, presumed=True)


def simplify(node: IntLike) -> Expr:
    """Return the same value with constants folded and integer sums collected."""
    return _simpler(node if isinstance(node, Expr) else expr(node))


def _simpler(node: Expr) -> Expr:
    children = node.children()
    if not children:
        return node
    sums = isinstance(node, Applied) and node.dtype == "int" and node.operator in ("+", "-", "*", "neg")
    if sums:
        terms, offset = linear(node)
        if next(iter(terms), None) is not node:  # else it is a product of two expressions
            found: Terms = {}
            for atom, factor in terms.items():
                simpler = _simpler(atom)
                inner, extra = ({atom: 1}, 0) if simpler is atom else linear(simpler)
                offset += extra * factor
                for part, count in inner.items():
                    found[part] = found.get(part, 0) + count * factor
            return from_linear({part: count for part, count in found.items() if count}, offset)
    changed = [_simpler(child) for child in children]
    if any(new is not old for new, old in zip(changed, children, strict=True)):
        node = node.rebuilt(*changed)
    return _folded(node) if isinstance(node, Applied) and node.dtype in ("int", "bool") else node


def _folded(node: Applied) -> Expr:
    """Return an operation whose arguments are simple."""
    args, meaning = node.args, OPERATORS[node.operator].meaning
    if meaning and all(isinstance(a, Const) and a.dtype in ("int", "bool") for a in args):
        values = [a.value for a in args]
        if not (node.operator in DIVISIONS and values[1] == 0):
            boolean = OPERATORS[node.operator].result == "bool" and node.dtype == "bool"
            return Const(bool(meaning(*values)), "bool") if boolean else Const(int(meaning(*values)))
    if node.dtype == "int" and node.operator in ("+", "-", "*", "neg"):
        return from_linear(*linear(node))
    if isinstance(node, Select) and isinstance(node.condition, Const):
        return node.then if node.condition.value else node.otherwise
    if node.dtype == "int" and node.operator in DIVISIONS and args[1] == ONE:
        return ZERO if node.operator == "%" else args[0]
    return node


def difference(left: Expr, right: Expr) -> Expr:
    """Return ``left - right``, simplified."""
    return simplify(Binary("-", left, right))


def trips(loop: Any) -> range | None:
    """Return the numbers that a loop of a Plan or Program counts through, if its bounds are numbers."""
    numbers = [known(e) for e in (loop.start, loop.stop, loop.step)]
    return None if None in numbers or not numbers[2] else range(*numbers)  # type: ignore[arg-type]


def known(node: Expr) -> int | None:
    """Return the value of an integer expression, if it is a number."""
    short = node if isinstance(node, Const) else simplify(node)
    return int(short.value) if isinstance(short, Const) and short.dtype in ("int", "bool") else None
