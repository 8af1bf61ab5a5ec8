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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from megatile.core.errors import ArithmeticSyntaxError, did_you_mean

LONGEST = 200  # bounds the depth of the tree, and so of the recursion below
LARGEST = 2**64


def _power(base: float, exponent: float) -> float:
    if abs(exponent) > 64 or abs(base) > LARGEST:
        raise ArithmeticSyntaxError(f"{base}**{exponent} is too large")
    if base < 0 and exponent != int(exponent):
        raise ArithmeticSyntaxError(f"{base}**{exponent} is not a real number")
    return base**exponent


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
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
    """The value of an arithmetic expression over ``names``."""
    return _value(_tree(text).body, names, text)


@dataclass(frozen=True)
class Lambda:
    """A ``lambda`` of the small arithmetic, parsed once and called with numbers."""

    text: str
    parameters: tuple[str, ...]
    body: ast.expr

    @classmethod
    def parse(cls, text: str, arity: int | None = None) -> Lambda:
        node = _tree(text).body
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
        # A dry run finds forbidden nodes and unknown names now, with the file at hand, not at launch.
        _check(node.body, set(names), text)
        return cls(text, names, node.body)

    def __call__(self, *values: Any) -> Any:
        return _value(self.body, dict(zip(self.parameters, values, strict=True)), self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lambda) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _tree(text: str) -> ast.Expression:
    if not isinstance(text, str):
        raise ArithmeticSyntaxError(f"{text!r} is not an expression")
    if len(text) > LONGEST:
        raise ArithmeticSyntaxError(f"an expression of {len(text)} characters is too long")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArithmeticSyntaxError(f"'{text}' is not an expression", advice=WHAT_IS_ALLOWED) from None


def _check(node: ast.AST, names: set[str], text: str) -> None:
    """Refuse every node that :func:`_value` would refuse, without values."""
    called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id not in (FUNCTIONS if id(part) in called else names):
            raise ArithmeticSyntaxError(
                f"'{part.id}' in '{text}' is unknown", advice=did_you_mean(part.id, names)
            )
        if not isinstance(part, (ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context)) and (
            type(part) not in RULES or (isinstance(part, ast.Call) and not _plain_call(part))
        ):
            raise _refused(text)
        operators: dict[type, Any] = {ast.BinOp: BINARY, ast.UnaryOp: UNARY}
        if type(part) in operators and type(part.op) not in operators[type(part)]:  # type: ignore[attr-defined]
            raise _refused(text)
        if isinstance(part, ast.Compare) and any(type(symbol) not in COMPARE for symbol in part.ops):
            raise _refused(text)
        if isinstance(part, ast.Constant):
            _constant(part, {}, text)


def _plain_call(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords


def _refused(text: str) -> ArithmeticSyntaxError:
    return ArithmeticSyntaxError(f"'{text}' is refused", advice=WHAT_IS_ALLOWED)


def _value(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    rule = RULES.get(type(node))
    if rule is None:
        raise _refused(text)
    try:
        result = rule(node, names, text)
    except (ZeroDivisionError, OverflowError, TypeError, ValueError) as problem:
        if isinstance(problem, ArithmeticSyntaxError):
            raise
        raise ArithmeticSyntaxError(f"'{text}' cannot be computed: {problem}") from None
    if isinstance(result, (int, float)) and abs(result) > LARGEST:
        raise ArithmeticSyntaxError(f"'{text}' is too large")
    return result


def _constant(node: ast.Constant, names: Mapping[str, Any], text: str) -> Any:
    if isinstance(node.value, (int, float)):
        return node.value
    raise _refused(text)


def _name(node: ast.Name, names: Mapping[str, Any], text: str) -> Any:
    if node.id not in names:
        raise ArithmeticSyntaxError(
            f"'{node.id}' in '{text}' is unknown", advice=did_you_mean(node.id, names)
        )
    return names[node.id]


def _binary(node: ast.BinOp, names: Mapping[str, Any], text: str) -> Any:
    rule = BINARY.get(type(node.op))
    if rule is None:
        raise _refused(text)
    return rule(_number(node.left, names, text), _number(node.right, names, text))


def _number(node: ast.expr, names: Mapping[str, Any], text: str) -> Any:
    """A value to compute with. Texts are refused: * and % would make them as long as an attacker likes."""
    value = _value(node, names, text)
    if not isinstance(value, (int, float)):
        raise ArithmeticSyntaxError(f"'{text}' computes with {value!r}, which is not a number")
    return value


UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


def _unary(node: ast.UnaryOp, names: Mapping[str, Any], text: str) -> Any:
    rule = UNARY.get(type(node.op))
    if rule is None:
        raise _refused(text)
    return rule(_value(node.operand, names, text))


def _compare(node: ast.Compare, names: Mapping[str, Any], text: str) -> bool:
    left = _value(node.left, names, text)
    for symbol, right_node in zip(node.ops, node.comparators, strict=True):
        rule = COMPARE.get(type(symbol))
        if rule is None:
            raise _refused(text)
        right = _value(right_node, names, text)
        if not rule(left, right):
            return False
        left = right
    return True


def _choice(node: ast.IfExp, names: Mapping[str, Any], text: str) -> Any:
    return _value(node.body if _value(node.test, names, text) else node.orelse, names, text)


def _boolean(node: ast.BoolOp, names: Mapping[str, Any], text: str) -> Any:
    stop_at = isinstance(node.op, ast.Or)
    result: Any = not stop_at
    for part in node.values:
        result = _value(part, names, text)
        if bool(result) is stop_at:
            break
    return result


def _call(node: ast.Call, names: Mapping[str, Any], text: str) -> Any:
    if not _plain_call(node):
        raise _refused(text)
    assert isinstance(node.func, ast.Name)
    return FUNCTIONS[node.func.id](*(_value(a, names, text) for a in node.args))


RULES: dict[type, Callable[[Any, Mapping[str, Any], str], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.IfExp: _choice,
    ast.BoolOp: _boolean,
    ast.Call: _call,
}
