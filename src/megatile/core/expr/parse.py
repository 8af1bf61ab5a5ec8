"""Reads the text form of expressions. Python's parser gives the tree; nothing is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from megatile.core.errors import Place
from megatile.core.expr.operators import OPERATORS
from megatile.core.expr.tree import (
    Expr,
    ExprError,
    Symbol,
    binary,
    ceil_div,
    constant,
    expr,
    ne,
    select,
    table,
)

SYMBOLS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&", ast.LShift: "<<", ast.RShift: ">>", ast.And: "and",
    ast.Or: "or", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.USub: "neg", ast.Not: "not",
}  # fmt: skip


_SPELT_OUT: dict[str, Callable[[Expr, Expr], Expr]] = {
    "and": lambda a, b: ne(a, 0) & ne(b, 0),
    "or": lambda a, b: ne(a, 0) | ne(b, 0),
    "ceildiv": ceil_div,
}
"""What Plans say with the operators they have."""


class ExprReader:
    """Python's syntax tree of an expression to ours: whole numbers, folded. A typed language overrides
    ``constant``, ``name``, ``apply``, ``function`` and ``subscript``."""

    def expr(self, tree: ast.expr) -> Any:
        for kind, read in _READ.items():
            if isinstance(tree, kind):
                return read(self, tree)
        raise self.fail(tree)

    def fail(self, tree: ast.AST, what: str = "is not an integer expression") -> Exception:
        return ExprError(f"'{ast.unparse(tree)}' {what}", place=Place(line=getattr(tree, "lineno", None)))

    def constant(self, tree: ast.Constant) -> Expr:
        if not isinstance(tree.value, int):
            raise self.fail(tree)
        return expr(tree.value)

    def name(self, tree: ast.Name) -> Expr:
        return Symbol(tree.id)

    def apply(self, tree: ast.AST, operator: str, *args: Expr) -> Expr:
        if operator in ("<<", ">>") and not 0 <= (constant(args[1]) or 0) < 63:
            raise self.fail(tree, "shifts too far")
        if operator == "neg":
            return -args[0]
        if len(args) != 2 or OPERATORS[operator].rule is None:
            raise self.fail(tree)
        if operator in _SPELT_OUT:
            return _SPELT_OUT[operator](*args)
        return binary(operator, *args)

    def function(self, tree: ast.Call) -> Expr:
        word, count = ast.unparse(tree.func), len(tree.args)
        if word == "select" and count == 3:
            return select(*map(self.expr, tree.args))
        if word == "table" and count == 2 and isinstance(tree.args[0], ast.Tuple):
            return table([self.number(v) for v in tree.args[0].elts], self.expr(tree.args[1]))
        if word in OPERATORS and count == OPERATORS[word].arity == 2:
            return self.apply(tree, word, *map(self.expr, tree.args))
        raise self.fail(tree)

    def number(self, tree: ast.expr) -> int:
        value = constant(self.expr(tree))
        if value is None:
            raise self.fail(tree, "is not a number")
        return value

    def operated(self, tree: ast.AST, operator: ast.AST, *operands: ast.expr) -> Expr:
        if type(operator) not in SYMBOLS:
            raise self.fail(tree)
        return self.apply(tree, SYMBOLS[type(operator)], *map(self.expr, operands))

    def boolean(self, tree: ast.BoolOp) -> Expr:
        result = self.expr(tree.values[0])
        for value in tree.values[1:]:
            result = self.apply(tree, SYMBOLS[type(tree.op)], result, self.expr(value))
        return result

    def compare(self, tree: ast.Compare) -> Expr:
        if len(tree.ops) != 1:
            raise self.fail(tree)
        return self.operated(tree, tree.ops[0], tree.left, *tree.comparators)

    def subscript(self, tree: ast.Subscript) -> Expr:
        raise self.fail(tree)


_READ: dict[type, Callable[[ExprReader, Any], Expr]] = {
    ast.Constant: lambda reader, tree: reader.constant(tree),
    ast.Name: lambda reader, tree: reader.name(tree),
    ast.UnaryOp: lambda reader, tree: reader.operated(tree, tree.op, tree.operand),
    ast.BinOp: lambda reader, tree: reader.operated(tree, tree.op, tree.left, tree.right),
    ast.BoolOp: ExprReader.boolean,
    ast.Compare: ExprReader.compare,
    ast.Subscript: lambda reader, tree: reader.subscript(tree),
    ast.Call: lambda reader, tree: reader.function(tree),
}


def expression(text: str) -> Expr:
    """Return a whole-number expression from its text."""
    if not isinstance(text, str):
        raise ExprError(f"{text!r} is not an integer expression")
    try:
        return ExprReader().expr(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ExprError(f"cannot read '{text[:80]}': {error.msg}") from error
    except (RecursionError, MemoryError):
        raise ExprError(f"the expression '{text[:80]}' is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ExprError):
            raise
        raise ExprError(f"cannot read '{text[:80]}': {error}") from error
