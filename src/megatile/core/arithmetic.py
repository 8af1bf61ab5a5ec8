"""The small integer arithmetic that machine files may contain. Never ``eval``.

    >>> evaluate("nodes * 8 + 1", {"nodes": 4})
    33
    >>> Lambda.parse("lambda _t, _b: _b // 32")(None, 256)
    8

Allowed: numbers, named values, + - * / // % **, comparisons, ``a if c else b``, and/or/not, and the
functions min, max, abs, ceildiv. Anything else is refused with the reason.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from megatile.core.errors import ArithmeticSyntaxError, did_you_mean

MAX_EXPRESSION_CHARS = 200  # bounds the depth of the tree, and so of the recursion below
MAX_MAGNITUDE = 2**64
"""Largest absolute value of an operand or result."""


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > 64 or abs(base) > MAX_MAGNITUDE:
        raise ArithmeticSyntaxError(f"{base}**{exponent} is too large")
    if base < 0 and exponent != int(exponent):
        raise ArithmeticSyntaxError(f"{base}**{exponent} is not a real number")
    return base**exponent


OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceildiv": lambda a, b: -(-a // b),
}
WHAT_IS_ALLOWED = (
    "only numbers, names, + - * / // % **, comparisons, if-else, and/or/not, min, max, abs, ceildiv"
)


def evaluate(text: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an arithmetic expression over ``names``."""
    tree = _tree(text)
    _check(tree, text)
    return _Values(text, names).value(tree)


@dataclass(frozen=True)
class Lambda:
    """A ``lambda`` of the small arithmetic, parsed once and called with numbers."""

    text: str
    parameters: tuple[str, ...]
    body: ast.expr

    @classmethod
    def parse(cls, text: str, arity: int | None = None) -> Lambda:
        node = _tree(text)
        if not isinstance(node, ast.Lambda):
            raise ArithmeticSyntaxError(
                f"'{text}' is not a lambda", advice="write it like 'lambda _t, _b: _b // 32'"
            )
        spec = node.args
        if spec.vararg or spec.kwarg or spec.kwonlyargs or spec.defaults or spec.posonlyargs:
            raise ArithmeticSyntaxError(
                f"'{text}' may have plain parameters only", advice="write it like 'lambda _t, _b: _b // 32'"
            )
        names = tuple(a.arg for a in spec.args)
        if len(set(names)) < len(names):
            raise ArithmeticSyntaxError(f"'{text}' names a parameter twice")
        if arity is not None and len(names) != arity:
            raise ArithmeticSyntaxError(
                f"'{text}' takes {len(names)} parameters, not {arity}",
                advice="write it like 'lambda _t, _b: _b // 32'",
            )
        _check(node.body, text)
        # Unknown names are found now, with the file at hand, not at launch.
        called = {id(part.func) for part in ast.walk(node.body) if isinstance(part, ast.Call)}
        for part in ast.walk(node.body):
            if isinstance(part, ast.Name) and id(part) not in called and part.id not in names:
                raise _unknown(part.id, names, text)
        return cls(text, names, node.body)

    def __call__(self, *values: Any) -> Any:
        return _Values(self.text, dict(zip(self.parameters, values, strict=True))).value(self.body)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lambda) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _tree(text: str) -> ast.expr:
    if not isinstance(text, str):
        raise ArithmeticSyntaxError(f"{text!r} is not an expression")
    if len(text) > MAX_EXPRESSION_CHARS:
        raise ArithmeticSyntaxError(f"an expression of {len(text)} characters is too long")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArithmeticSyntaxError(f"'{text}' is not an expression", advice=WHAT_IS_ALLOWED) from None


def _check(node: ast.expr, text: str) -> None:
    """Refuse what is not of this arithmetic, whether it would be reached or not."""
    for part in ast.walk(node):
        allowed = type(part) in RULES or isinstance(part, (ast.boolop, ast.expr_context))
        if isinstance(part, (ast.operator, ast.unaryop, ast.cmpop)):
            allowed = type(part) in OPERATORS
        elif isinstance(part, ast.Call):
            function = part.func.id if isinstance(part.func, ast.Name) else ""
            allowed = function in FUNCTIONS and not part.keywords
        elif isinstance(part, ast.Constant):
            allowed = isinstance(part.value, (int, float))
        if not allowed:
            raise ArithmeticSyntaxError(f"'{text}' is refused", advice=WHAT_IS_ALLOWED)


def _unknown(name: str, names: Iterable[str], text: str) -> ArithmeticSyntaxError:
    return ArithmeticSyntaxError(f"'{name}' in '{text}' is unknown", advice=did_you_mean(name, names))


@dataclass
class _Values:
    """The values of nodes that were checked, by the names' values."""

    text: str
    names: Mapping[str, Any]

    def value(self, node: ast.expr) -> Any:
        try:
            result = RULES[type(node)](self, node)
        except (ZeroDivisionError, OverflowError, TypeError, ValueError) as problem:
            if isinstance(problem, ArithmeticSyntaxError):
                raise
            raise ArithmeticSyntaxError(f"'{self.text}' cannot be computed: {problem}") from None
        if isinstance(result, (int, float)) and abs(result) > MAX_MAGNITUDE:
            raise ArithmeticSyntaxError(f"'{self.text}' is too large")
        return result

    def number(self, node: ast.expr) -> Any:
        """Return a value to compute with. Texts are refused: * and % would make them as long as an attacker
        likes."""
        value = self.value(node)
        if not isinstance(value, (int, float)):
            raise ArithmeticSyntaxError(f"'{self.text}' computes with {value!r}, which is not a number")
        return value

    def name(self, node: ast.Name) -> Any:
        if node.id not in self.names:
            raise _unknown(node.id, self.names, self.text)
        return self.names[node.id]

    def compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for symbol, operand in zip(node.ops, node.comparators, strict=True):
            right = self.value(operand)
            if not OPERATORS[type(symbol)](left, right):
                return False
            left = right
        return True

    def boolean(self, node: ast.BoolOp) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        result: Any = not stop_at
        for part in node.values:
            result = self.value(part)
            if bool(result) is stop_at:
                break
        return result


RULES: dict[type, Callable[[_Values, Any], Any]] = {
    ast.Constant: lambda values, node: node.value,
    ast.Name: _Values.name,
    ast.BinOp: lambda values, node: OPERATORS[type(node.op)](*map(values.number, (node.left, node.right))),
    ast.UnaryOp: lambda values, node: OPERATORS[type(node.op)](values.value(node.operand)),
    ast.Compare: _Values.compare,
    ast.IfExp: lambda values, node: values.value(node.body if values.value(node.test) else node.orelse),
    ast.BoolOp: _Values.boolean,
    ast.Call: lambda values, node: FUNCTIONS[node.func.id](*map(values.value, node.args)),
}
