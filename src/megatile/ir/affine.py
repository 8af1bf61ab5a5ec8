"""Integer arithmetic on expressions: folding, sums of products in one order, and differences.

``simplify((k + 1) * 64 - k * 64)`` is ``64``: extents of slices become numbers this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatile.ir.expr import Apply, Const, Expr, Var, integer, rebuild

FOLD: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "ceildiv": lambda a, b: -(-a // b),
    "max": max,
    "min": min,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "neg": lambda a: -a,
    "not": lambda a: not a,
    "abs": abs,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
"""Operators on Python numbers."""
_BOOL = {"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"}
Terms = dict  # from an atom (an expression, or None for the constant) to its integer factor


def _is_int(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.dtype == "int"


def terms(expr: Expr) -> Terms:
    """The expression as a sum of integer multiples of atoms."""
    if isinstance(expr, Const) and expr.dtype == "int":
        return {None: expr.value} if expr.value else {}
    if isinstance(expr, Apply) and expr.dtype == "int":
        if expr.op in ("add", "sub"):
            return _add(terms(expr.args[0]), terms(expr.args[1]), 1 if expr.op == "add" else -1)
        if expr.op == "neg":
            return _add({}, terms(expr.args[0]), -1)
        if expr.op == "mul":
            left, right = terms(expr.args[0]), terms(expr.args[1])
            for factor, other in ((left, right), (right, left)):
                if set(factor) <= {None}:
                    return _add({}, other, factor.get(None, 0))
    return {expr: 1}


def _add(left: Terms, right: Terms, factor: int) -> Terms:
    total = dict(left)
    for atom, count in right.items():
        total[atom] = total.get(atom, 0) + factor * count
    return {atom: count for atom, count in total.items() if count}


def _from_terms(sums: Terms) -> Expr:
    result: Expr | None = None
    for atom, count in sums.items():
        if atom is None:
            continue
        part: Expr = atom if abs(count) == 1 else Apply("mul", (atom, integer(abs(count))))
        if result is None:
            result = part if count > 0 else Apply("neg", (part,))
        else:
            result = Apply("add" if count > 0 else "sub", (result, part))
    constant = sums.get(None, 0)
    if result is None:
        return integer(constant)
    if constant:
        return Apply("add" if constant > 0 else "sub", (result, integer(abs(constant))))
    return result


def _one(expr: Expr) -> Expr:
    if not isinstance(expr, Apply):
        return expr
    if expr.op in FOLD and all(isinstance(a, Const) and a.dtype in ("int", "bool") for a in expr.args):
        values = [a.value for a in expr.args]  # type: ignore[union-attr]
        if not (expr.op in ("floordiv", "mod", "ceildiv") and values[1] == 0):
            return Const(FOLD[expr.op](*values), "bool" if expr.op in _BOOL else "int")
    if expr.dtype == "int" and expr.op in ("add", "sub", "mul", "neg"):
        return _from_terms(terms(expr))
    return _identity(expr)


def _identity(expr: Apply) -> Expr:
    if expr.op in ("floordiv", "ceildiv") and expr.dtype == "int" and expr.args[1] == integer(1):
        return expr.args[0]
    if expr.op == "mod" and expr.dtype == "int" and expr.args[1] == integer(1):
        return integer(0)
    if expr.op == "if_then_else" and isinstance(expr.args[0], Const):
        return expr.args[1] if expr.args[0].value else expr.args[2]
    return expr


def simplify(expr: Expr) -> Expr:
    """The same value with constants folded and integer sums collected."""
    return rebuild(expr, _one)


def difference(left: Expr, right: Expr) -> Expr:
    """``left - right``, simplified."""
    return simplify(Apply("sub", (left, right)))


def known(expr: Expr) -> int | None:
    """The value of an integer expression, if it is a number."""
    folded = simplify(expr)
    return int(folded.value) if isinstance(folded, Const) and folded.dtype in ("int", "bool") else None


def substitute(expr: Expr, names: dict[str, Expr]) -> Expr:
    """The expression with variables replaced."""
    return rebuild(expr, lambda e: names.get(e.name, e) if isinstance(e, Var) else e)
