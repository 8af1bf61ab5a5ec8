"""Small integer expressions over a unit's number, loop indices and runtime integers.

They are data (frozen, comparable, printable) and evaluate on Python ints and on NumPy arrays alike, so one
stream can be followed for one unit or for all units at once.

>>> unit = Symbol("unit")
>>> east = (unit + 1) % 8
>>> east.evaluate({"unit": 7}), str(east)
(0, '(unit + 1) % 8')

Expressions are total: dividing by zero gives 0 and a table lookup is clamped to the ends of the table. That
makes it harmless that both sides of a ``select`` are evaluated on arrays. Comparisons give 0 or 1. ``==``
compares two expressions as data; ``eq(a, b)`` makes the expression that compares their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Union

import numpy as np

from megatile.core.errors import MegatileError
from megatile.plan.operators import OPERATORS, Value

IntLike = Union["Expr", int]
Environment = Mapping[str, Value]


class ExprError(MegatileError, ValueError):
    """An expression used where its value must already be known, or not of this small arithmetic."""


class Expr:
    """An integer expression; see the module's text."""

    __slots__ = ()

    def evaluate(self, env: Environment) -> Value:
        """The value with every symbol looked up in ``env`` (ints or equally shaped arrays)."""
        return self.compile()(env)

    def compile(self) -> Callable[[Environment], Value]:
        """A function of the environment: cheaper than ``evaluate`` when used more than once."""
        raise ExprError(f"{self!r} has no value")

    def __add__(self, other: IntLike) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: IntLike) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: IntLike) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: IntLike) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: IntLike) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: IntLike) -> Expr:
        return binary("*", other, self)

    def __floordiv__(self, other: IntLike) -> Expr:
        return binary("//", self, other)

    def __rfloordiv__(self, other: IntLike) -> Expr:
        return binary("//", other, self)

    def __mod__(self, other: IntLike) -> Expr:
        return binary("%", self, other)

    def __rmod__(self, other: IntLike) -> Expr:
        return binary("%", other, self)

    def __and__(self, other: IntLike) -> Expr:
        return binary("&", self, other)

    def __rand__(self, other: IntLike) -> Expr:
        return binary("&", other, self)

    def __or__(self, other: IntLike) -> Expr:
        return binary("|", self, other)

    def __ror__(self, other: IntLike) -> Expr:
        return binary("|", other, self)

    def __xor__(self, other: IntLike) -> Expr:
        return binary("^", self, other)

    def __rxor__(self, other: IntLike) -> Expr:
        return binary("^", other, self)

    def __lshift__(self, other: IntLike) -> Expr:
        return binary("<<", self, other)

    def __rlshift__(self, other: IntLike) -> Expr:
        return binary("<<", other, self)

    def __rshift__(self, other: IntLike) -> Expr:
        return binary(">>", self, other)

    def __rrshift__(self, other: IntLike) -> Expr:
        return binary(">>", other, self)

    def __lt__(self, other: IntLike) -> Expr:
        return binary("<", self, other)

    def __le__(self, other: IntLike) -> Expr:
        return binary("<=", self, other)

    def __gt__(self, other: IntLike) -> Expr:
        return binary(">", self, other)

    def __ge__(self, other: IntLike) -> Expr:
        return binary(">=", self, other)

    def __neg__(self) -> Expr:
        return binary("-", 0, self)

    def __invert__(self) -> Expr:
        return binary("-", -1, self)

    def __bool__(self) -> bool:
        raise ExprError(
            f"the value of '{self}' is not known while the plan is being built",
            advice="write If(...) or select(...) instead of Python's if",
        )

    __int__ = __index__ = __bool__

    def __str__(self) -> str:
        return to_text(self)


@dataclass(frozen=True, repr=False)
class Const(Expr):
    value: int

    def compile(self) -> Callable[[Environment], Value]:
        value = self.value
        return lambda env: value

    def __repr__(self) -> str:
        return f"Const({self.value})"


@dataclass(frozen=True, repr=False)
class Symbol(Expr):
    """A named integer: ``unit``, a loop index, a carried integer or the result of ``ReadScalar``."""

    name: str

    def compile(self) -> Callable[[Environment], Value]:
        name = self.name
        return lambda env: env[name]

    def __repr__(self) -> str:
        return f"Symbol({self.name!r})"


@dataclass(frozen=True, repr=False)
class Binary(Expr):
    operator: str
    left: Expr
    right: Expr

    def compile(self) -> Callable[[Environment], Value]:
        rule, left, right = OPERATORS[self.operator].rule, self.left.compile(), self.right.compile()
        if isinstance(self.right, Const):
            constant = self.right.value
            return lambda env: rule(left(env), constant)
        return lambda env: rule(left(env), right(env))

    def __repr__(self) -> str:
        return f"Binary({self.operator!r}, {self.left!r}, {self.right!r})"


@dataclass(frozen=True, repr=False)
class Select(Expr):
    """``then`` where the condition is not 0, else ``otherwise``."""

    condition: Expr
    then: Expr
    otherwise: Expr

    def compile(self) -> Callable[[Environment], Value]:
        condition, then, otherwise = self.condition.compile(), self.then.compile(), self.otherwise.compile()

        def value(env: Environment) -> Value:
            chosen = condition(env)
            if isinstance(chosen, np.ndarray):
                return np.where(chosen != 0, then(env), otherwise(env))
            return then(env) if chosen else otherwise(env)

        return value

    def __repr__(self) -> str:
        return f"Select({self.condition!r}, {self.then!r}, {self.otherwise!r})"


@dataclass(frozen=True, repr=False)
class Table(Expr):
    """``values[index]``: any function of an integer, written out."""

    values: tuple[int, ...]
    index: Expr

    def compile(self) -> Callable[[Environment], Value]:
        return tabulated(self.values, self.index.compile())

    def __repr__(self) -> str:
        return f"Table({self.values!r}, {self.index!r})"


def tabulated(
    values: tuple[int, ...], index: Callable[[Environment], Value]
) -> Callable[[Environment], Value]:
    """``values[index]``, the index clamped to the table."""
    array, last = np.asarray(values, dtype=np.int64), len(values) - 1

    def value(env: Environment) -> Value:
        at = index(env)
        if isinstance(at, np.ndarray):
            return array.take(at, mode="clip")
        return values[min(max(at, 0), last)]

    return value


def expr(value: IntLike) -> Expr:
    """An int (or NumPy integer, or bool) as an expression; an expression as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return Const(int(value))
    raise ExprError(f"{value!r} is not an integer")


def constant(value: IntLike) -> int | None:
    """The number if it is one, else None."""
    if isinstance(value, Const):
        return value.value
    return None if isinstance(value, Expr) else int(value)


def binary(operator: str, left: IntLike, right: IntLike) -> Expr:
    """``left operator right`` with constants folded and neutral elements dropped."""
    a, b = expr(left), expr(right)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(int(OPERATORS[operator].rule(a.value, b.value)))
    if isinstance(b, Const):
        short = _with_constant(operator, a, b.value)
        if short is not None:
            return short
    if isinstance(a, Const) and operator in ("+", "*"):
        return binary(operator, b, a)
    if a == b and operator in _SAME:
        return Const(_SAME[operator])
    return Binary(operator, a, b)


_SAME = {"-": 0, "==": 1, "<=": 1, ">=": 1, "!=": 0, "<": 0, ">": 0, "^": 0}


def _with_constant(operator: str, a: Expr, b: int) -> Expr | None:
    if (operator in ("+", "-", "|", "^", "<<", ">>") and b == 0) or (operator in ("*", "//") and b == 1):
        return a
    if (operator in ("*", "&") and b == 0) or (operator == "%" and b == 1):
        return Const(0)
    inner = a.right if isinstance(a, Binary) and isinstance(a.right, Const) else None
    if inner is None or not isinstance(a, Binary):
        return None
    if operator in ("+", "-") and a.operator in ("+", "-"):
        total = (inner.value if a.operator == "+" else -inner.value) + (b if operator == "+" else -b)
        return binary("+", a.left, total) if total >= 0 else binary("-", a.left, -total)
    if operator == "*" and a.operator == "*":
        return binary("*", a.left, inner.value * b)
    return None


def eq(left: IntLike, right: IntLike) -> Expr:
    return binary("==", left, right)


def ne(left: IntLike, right: IntLike) -> Expr:
    return binary("!=", left, right)


def logical_not(value: IntLike) -> Expr:
    return binary("==", value, 0)


def minimum(left: IntLike, right: IntLike) -> Expr:
    return binary("min", left, right)


def maximum(left: IntLike, right: IntLike) -> Expr:
    return binary("max", left, right)


def ceil_div(left: IntLike, right: IntLike) -> Expr:
    return (expr(left) + (expr(right) - 1)) // right


def select(condition: IntLike, then: IntLike, otherwise: IntLike) -> Expr:
    """``then`` where ``condition`` is not 0, else ``otherwise``."""
    known = constant(condition)
    if known is not None:
        return expr(then if known else otherwise)
    a, b = expr(then), expr(otherwise)
    return a if a == b else Select(expr(condition), a, b)


def table(values: tuple[int, ...] | list[int], index: IntLike) -> Expr:
    """``values[index]`` (the index is clamped to the table)."""
    if not len(values):
        raise ExprError("a table needs at least one value")
    numbers = tuple(int(v) for v in values)
    known = constant(index)
    if known is not None:
        return Const(numbers[min(max(known, 0), len(numbers) - 1)])
    if all(v == numbers[0] for v in numbers):
        return Const(numbers[0])
    return Table(numbers, expr(index))


def children(node: Expr) -> tuple[Expr, ...]:
    if isinstance(node, Binary):
        return node.left, node.right
    if isinstance(node, Select):
        return node.condition, node.then, node.otherwise
    return (node.index,) if isinstance(node, Table) else ()


def symbols(node: IntLike) -> frozenset[str]:
    """The names an expression depends on."""
    return frozenset(_names(node)) if isinstance(node, Expr) else frozenset()


def _names(node: Expr) -> Iterator[str]:
    if isinstance(node, Symbol):
        yield node.name
    for child in children(node):
        yield from _names(child)


def substitute(node: Expr, values: Mapping[str, IntLike]) -> Expr:
    """The expression with symbols replaced."""
    if isinstance(node, Symbol):
        return expr(values[node.name]) if node.name in values else node
    if isinstance(node, Binary):
        return binary(node.operator, substitute(node.left, values), substitute(node.right, values))
    if isinstance(node, Select):
        return select(*(substitute(child, values) for child in children(node)))
    if isinstance(node, Table):
        return table(node.values, substitute(node.index, values))
    return node


def to_text(node: Expr, outer: int = 0) -> str:
    """Python spelling, with parentheses only where needed; ``plan.text`` reads it back."""
    if isinstance(node, Const):
        return str(node.value) if node.value >= 0 or outer <= 6 else f"({node.value})"
    if isinstance(node, Symbol):
        return node.name
    if isinstance(node, Select):
        return f"select({', '.join(to_text(child) for child in children(node))})"
    if isinstance(node, Table):
        return f"table(({', '.join(map(str, node.values))},), {to_text(node.index)})"
    assert isinstance(node, Binary)
    operator = OPERATORS[node.operator]
    if operator.function:
        return f"{node.operator}({to_text(node.left)}, {to_text(node.right)})"
    # Comparisons chain in Python, so both sides are bracketed one step tighter.
    left = operator.binding + 1 if operator.binding == 1 else operator.binding
    text = f"{to_text(node.left, left)} {node.operator} {to_text(node.right, operator.binding + 1)}"
    return f"({text})" if operator.binding < outer else text


unit = Symbol("unit")
member = Symbol("member")
ZERO, ONE = Const(0), Const(1)
