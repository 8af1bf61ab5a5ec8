"""Reads the text form of integer expressions. Python's parser gives the tree; nothing is evaluated."""

from __future__ import annotations

import ast
from typing import Any

from megatile.core.errors import Place
from megatile.plan.expr import OPERATORS, Expr, ExprError, Symbol, binary, constant, expr, select, table
from megatile.plan.model import PlanError

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def expression(text: str) -> Expr:
    """An expression from its text."""
    if not isinstance(text, str):
        raise ExprError(f"{text!r} is no integer expression")
    try:
        return tree_expr(ast.parse(text, mode="eval").body)
    except SyntaxError as error:
        raise ExprError(f"cannot read '{text[:80]}': {error.msg}") from error
    except (RecursionError, MemoryError):
        raise ExprError(f"the expression '{text[:80]}' is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ExprError):
            raise
        raise ExprError(f"cannot read '{text[:80]}': {error}") from error


def tree_expr(node: ast.expr) -> Expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return expr(node.value)
    if isinstance(node, ast.Name):
        return Symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -tree_expr(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = tree_expr(node.left), tree_expr(node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not 0 <= (constant(right) or 0) < 63:
            raise ExprError(f"'{ast.unparse(node)}' shifts too far", place=Place(line=node.lineno))
        return binary(_BINARY[type(node.op)], left, right)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
        return binary(_COMPARE[type(node.ops[0])], tree_expr(node.left), tree_expr(node.comparators[0]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        word, count = node.func.id, len(node.args)
        if word == "select" and count == 3:
            return select(*(tree_expr(a) for a in node.args))
        if word == "table" and count == 2 and isinstance(node.args[0], ast.Tuple):
            return table([tree_int(v) for v in node.args[0].elts], tree_expr(node.args[1]))
        if word in OPERATORS and count == 2:
            return binary(word, tree_expr(node.args[0]), tree_expr(node.args[1]))
    raise ExprError(f"'{ast.unparse(node)}' is no integer expression", place=Place(line=node.lineno))


def tree_int(node: ast.expr) -> int:
    value = constant(tree_expr(node))
    if value is None:
        raise PlanError(f"'{ast.unparse(node)}' is not a number", place=Place(line=node.lineno))
    return value


def tree_literal(node: ast.expr) -> Any:
    """A number, string or bool; anything else is an expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and ast.unparse(node.operand) == "inf":
        return float("-inf")
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    return tree_expr(node)
