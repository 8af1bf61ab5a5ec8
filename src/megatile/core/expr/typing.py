"""Typed expressions: promotion, the node an operator makes, elements of tiles, and their reader."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import reduce

from megatile.core.dtypes import is_float, itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr.operators import OPERATORS
from megatile.core.expr.parse import ExprReader
from megatile.core.expr.tree import WEAK, ZERO, Binary, Call, Const, Expr, Symbol, applied

_BITWISE = {"&", "|", "^", "<<", ">>"}


def _kind(dtype: str) -> int:
    if dtype in WEAK:
        return WEAK.index(dtype)
    return 2 if is_float(dtype) else 1


def promote(left: str, right: str) -> str:
    """Return the type in which two values meet: weak types give way, floats win, then the wider one.

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
    """Return the type of an operator's result."""
    rule = OPERATORS[op].result
    if rule == "bool":
        return "bool"
    common = reduce(promote, types[1:] if op == "select" else types)
    if common == "bool" and op not in ("select", *_BITWISE):
        common = "int"
    if rule == "float" and common in ("int", "bool"):
        return "float"
    return "f32" if rule == "float" and common not in WEAK and not is_float(common) else common


def apply(op: str, *args: Expr) -> Expr:
    """Return the typed node of an operator on arguments.

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


@dataclass(frozen=True)
class Load(Expr):
    """One element of a tile, view or tensor."""

    source: str
    index: tuple[Expr, ...]
    dtype: str

    def children(self) -> tuple[Expr, ...]:
        return self.index

    def rebuilt(self, *children: Expr) -> Expr:
        return Load(self.source, children, self.dtype)

    def text(self, outer: int = 0) -> str:
        return f"{self.source}[{', '.join(index.text() for index in self.index)}]"


class TypedReader(ExprReader):
    """Reads typed expressions; ``types`` are those of the names, numbers are weak."""

    def __init__(self, types: dict[str, str] | None = None) -> None:
        self.types: dict[str, str] = dict(types or {})

    @staticmethod
    def items(tree: ast.expr) -> list[ast.expr]:
        return tree.elts if isinstance(tree, ast.Tuple) else [tree]

    def constant(self, tree: ast.Constant) -> Expr:
        return Const(tree.value, type(tree.value).__name__)

    def name(self, tree: ast.Name) -> Expr:
        if tree.id in ("inf", "nan"):
            return Const(float(tree.id), "float")
        return Symbol(tree.id, self.types.get(tree.id, "int"))

    def apply(self, tree: ast.AST, operator: str, *args: Expr) -> Expr:
        if operator == "neg" and isinstance(args[0], Const):
            return Const(-args[0].value, args[0].dtype)
        return apply(operator, *args)

    def subscript(self, tree: ast.Subscript) -> Expr:
        source = ast.unparse(tree.value)
        index = tuple(self.expr(i) for i in self.items(tree.slice))
        return Load(source, index, self.types.get(source, "f32"))

    def function(self, tree: ast.Call) -> Expr:
        head = ast.unparse(tree.func)
        if head in ("cast", "bitcast"):
            return Call(head, (self.expr(tree.args[0]),), ast.literal_eval(tree.args[1]))
        if head not in OPERATORS:
            raise self.fail(tree, "unknown function")
        return apply(head, *(self.expr(a) for a in tree.args))
