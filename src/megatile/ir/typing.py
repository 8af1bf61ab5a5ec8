"""Types of expressions: promotion, and the node an operator makes of its arguments."""

from __future__ import annotations

from megatile.core.dtypes import is_float, itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import OPERATORS, WEAK, ZERO, Binary, Expr, applied

_BITWISE = {"&", "|", "^", "<<", ">>"}


def _kind(dtype: str) -> int:
    if dtype in WEAK:
        return WEAK.index(dtype)
    return 2 if is_float(dtype) else 1


def promote(left: str, right: str) -> str:
    """The type in which two values meet: weak types give way, floats win, then the wider one.

    >>> promote("f16", "int"), promote("i32", "f16"), promote("bf16", "f16"), promote("i32", "float")
    ('f16', 'f16', 'f32', 'f32')
    """
    if left == right:
        return left
    if left in WEAK and right in WEAK:
        return WEAK[max(WEAK.index(left), WEAK.index(right))]
    if left in WEAK or right in WEAK:
        weak, strong = (left, right) if left in WEAK else (right, left)
        if weak == "float" and not is_float(strong):
            return "f32"
        return weak if strong == "bool" else strong
    if _kind(left) != _kind(right):
        return left if _kind(left) > _kind(right) else right
    if "bool" in (left, right):
        return right if left == "bool" else left
    if itemsize(left) == itemsize(right):  # bf16 with f16, f8e4m3 with f8e5m2, i8 with u8
        if is_float(left):
            return "f32"
        return "i32" if itemsize(left) < 4 else "i64"
    return left if itemsize(left) > itemsize(right) else right


def result_type(op: str, types: tuple[str, ...]) -> str:
    """The type of an operator's result."""
    rule = OPERATORS[op].result
    if rule == "bool":
        return "bool"
    data = types[1:] if op == "select" else types
    common = data[0]
    for other in data[1:]:
        common = promote(common, other)
    if common == "bool" and op not in ("select", *_BITWISE):
        common = "int"
    if rule == "float" and common in ("int", "bool"):
        return "float"
    return "f32" if rule == "float" and common not in WEAK and not is_float(common) else common


def apply(op: str, *args: Expr) -> Expr:
    """The typed node of an operator on arguments.

    Bitwise operators on floats are refused; comparisons give ``bool``.
    """
    types = tuple(a.dtype for a in args)
    if op in _BITWISE and any(_kind(t) == 2 for t in types):
        raise MegatileError(
            f"'{op}' needs whole numbers, not {', '.join(types)}",
            advice="cast with T.cast(x, 'i32') first",
        )
    dtype = result_type(op, types)
    return Binary("-", ZERO, args[0]) if op == "neg" and dtype == "int" else applied(op, args, dtype)


def cast(value: Expr, dtype: str) -> Expr:
    return value if value.dtype == dtype else applied("cast", (value,), dtype)
