"""One tree of expressions for Plans and Programs.

Nodes are data: frozen, comparable, printable. Whole-number expressions (those of Plans) evaluate on Python
ints and on NumPy arrays alike, so one stream can be followed for one unit or for all units at once.

>>> unit = Symbol("unit")
>>> east = (unit + 1) % 8
>>> east.evaluate({"unit": 7}), str(east)
(0, '(unit + 1) % 8')

They are total: dividing by zero gives 0 and a table lookup is clamped to the ends of the table. That makes it
harmless that both sides of a ``select`` are evaluated on arrays. Comparisons give 0 or 1. ``==`` compares two
expressions as data; ``eq(a, b)`` makes the expression that compares their values.

``dtype`` is the type of a node. The weak types ``int``, ``float`` and ``bool`` belong to numbers written in
Python; beside a tile's dtype they give way to it, as in NumPy. Expressions of Plans are all ``int``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.expr.operators import COMPARISON, DIVISIONS, NEGATION, OPERATORS, SUM, Value, is_array

IntLike = Union["Expr", int]
Environment = Mapping[str, Value]
Function = Callable[[Any], Value]
WEAK = ("bool", "int", "float")


MAX_INT64 = 2**63 - 1
"""What the arrays that expressions are evaluated on can hold."""


class ExprError(MegatileError, ValueError):
    """An expression used where its value must already be known, or not of this small arithmetic."""


def _methods(operator: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the methods of an operator: with the other operand on the right, and on the left."""

    def left(self: Any, other: Any) -> Any:
        return self.operate(operator, self, other)

    def right(self: Any, other: Any) -> Any:
        return self.operate(operator, other, self)

    return left, right


class Arithmetic:
    """Python's operators, as ``operate(operator, left, right)``: what expressions and traced values share."""

    __slots__ = ()

    @staticmethod
    def operate(operator: str, left: Any, right: Any) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _methods("+")
    __sub__, __rsub__ = _methods("-")
    __mul__, __rmul__ = _methods("*")
    __floordiv__, __rfloordiv__ = _methods("//")
    __mod__, __rmod__ = _methods("%")
    __and__, __rand__ = _methods("&")
    __or__, __ror__ = _methods("|")
    __xor__, __rxor__ = _methods("^")
    __lshift__, __rlshift__ = _methods("<<")
    __rshift__, __rrshift__ = _methods(">>")
    __lt__, __le__, __gt__, __ge__ = (_methods(operator)[0] for operator in ("<", "<=", ">", ">="))


class Expr(Arithmetic):
    """An expression; see the module's text. Another kind of node says what its ``args`` are, how it is
    ``rebuilt`` from others and how it is written (``text``)."""

    __slots__ = ()
    dtype: str

    @staticmethod
    def operate(operator: str, left: IntLike, right: IntLike) -> Expr:
        return binary(operator, left, right)

    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuilt(self, *children: Expr) -> Expr:
        """Return the same node over other children."""
        return self

    def head(self) -> tuple[Any, ...]:
        """Return what the node is besides its children."""
        return (type(self), self)

    def function(self, *children: Function) -> Function:
        """Return a function of the environment, from those of the children."""
        raise ExprError(f"{self} has no value here")

    def text(self, outer: int = 0) -> str:
        """Python spelling, with the parentheses needed inside an operator that binds like ``outer``."""
        raise NotImplementedError

    def compile(self) -> Function:
        """Return a function of the environment: cheaper than ``evaluate`` when used more than once."""
        return self.function(*(child.compile() for child in self.children()))

    def evaluate(self, env: Environment) -> Value:
        """Return the value with every symbol looked up in ``env`` (ints or equally shaped arrays)."""
        return self.compile()(env)

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
        return self.text()

    def __repr__(self) -> str:
        shown = [repr(value) for name, value in vars(self).items() if (name, value) != ("dtype", "int")]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Const(Expr):
    value: Any  # a number
    dtype: str = "int"

    def __post_init__(self) -> None:
        if isinstance(self.value, int) and not -MAX_INT64 <= self.value <= MAX_INT64:
            raise ExprError(f"the number {str(self.value)[:40]} is larger than 63 bits can hold")

    def function(self, *children: Function) -> Function:
        value = self.value
        return lambda env: value

    def text(self, outer: int = 0) -> str:
        plain = repr(self.value)  # inf and nan are written like names
        return f"({plain})" if plain.startswith("-") and outer > SUM else plain


@dataclass(frozen=True, repr=False)
class Symbol(Expr):
    """A named number: ``unit``, a loop index, a carried integer, a scalar read at run time, an extent."""

    name: str
    dtype: str = "int"

    def function(self, *children: Function) -> Function:
        name = self.name
        return lambda env: env[name]

    def text(self, outer: int = 0) -> str:
        return self.name


class Applied(Expr):
    """An operator of the table, applied to ``args``."""

    __slots__ = ()
    operator: str
    args: Any

    def rebuilt(self, *children: Expr) -> Expr:
        return applied(self.operator, children, self.dtype)

    def head(self) -> tuple[Any, ...]:
        return type(self), self.operator, self.dtype


@dataclass(frozen=True, repr=False)
class Binary(Applied):
    operator: str
    left: Expr
    right: Expr
    dtype: str = "int"

    def children(self) -> tuple[Expr, ...]:
        return self.left, self.right

    args = property(children)

    def function(self, *children: Function) -> Function:
        rule, (left, right) = _rule(self.operator), children
        if isinstance(self.right, Const):
            constant = self.right.value
            return lambda env: rule(left(env), constant)
        return lambda env: rule(left(env), right(env))

    def text(self, outer: int = 0) -> str:
        own = OPERATORS[self.operator].binding
        if not own:
            return f"{self.operator}({self.left.text()}, {self.right.text()})"
        if self.operator == "-" and self.left == ZERO:
            return _negated(self.right, outer)
        # Comparisons chain in Python, and ** binds to the right: brackets on their left, too.
        left = self.left.text(own + (own == COMPARISON or self.operator == "**"))
        plain = f"{left} {self.operator} {self.right.text(own + 1)}"
        return f"({plain})" if own < outer else plain


@dataclass(frozen=True, repr=False)
class Select(Applied):
    """``then`` where the condition is not 0, else ``otherwise``."""

    condition: Expr
    then: Expr
    otherwise: Expr
    dtype: str = "int"
    operator: ClassVar[str] = "select"  # type: ignore[misc]

    def children(self) -> tuple[Expr, ...]:
        return self.condition, self.then, self.otherwise

    args = property(children)

    def function(self, *children: Function) -> Function:
        condition, then, otherwise = children

        def value(env: Environment) -> Value:
            chosen = condition(env)
            if is_array(chosen):
                return np.where(chosen != 0, then(env), otherwise(env))
            return then(env) if chosen else otherwise(env)

        return value

    def text(self, outer: int = 0) -> str:
        return f"select({', '.join(child.text() for child in self.children())})"


@dataclass(frozen=True, repr=False)
class Table(Expr):
    """``values[index]``: any function of an integer, written out."""

    values: tuple[int, ...]
    index: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return "int"

    def children(self) -> tuple[Expr, ...]:
        return (self.index,)

    def rebuilt(self, *children: Expr) -> Expr:
        return Table(self.values, *children)

    def head(self) -> tuple[Any, ...]:
        return Table, self.values

    def function(self, *children: Function) -> Function:
        values, (index,) = self.values, children
        array, last = np.asarray(values, dtype=np.int64), len(values) - 1

        def value(env: Environment) -> Value:
            at = index(env)
            return array.take(at, mode="clip") if is_array(at) else values[min(max(at, 0), last)]

        return value

    def text(self, outer: int = 0) -> str:
        return f"table(({', '.join(map(str, self.values))},), {self.index.text()})"


@dataclass(frozen=True, repr=False)
class Call(Applied):
    """A function of one argument (``exp``, ``cast``, ``not``, ...): only in Programs."""

    operator: str
    args: tuple[Expr, ...]
    dtype: str = "int"

    def children(self) -> tuple[Expr, ...]:
        return self.args

    def function(self, *children: Function) -> Function:
        rule = _rule(self.operator)
        return lambda env: rule(*(child(env) for child in children))

    def text(self, outer: int = 0) -> str:
        if self.operator == "neg":
            return _negated(self.args[0], outer)
        if self.operator in ("cast", "bitcast"):
            return f'{self.operator}({self.args[0].text()}, "{self.dtype}")'
        own = OPERATORS[self.operator].binding
        if not own:
            return f"{self.operator}({', '.join(arg.text() for arg in self.args)})"
        plain = f"{self.operator} {self.args[0].text(own + 1)}"
        return f"({plain})" if own < outer else plain


def _rule(operator: str) -> Callable[..., Value]:
    rule = OPERATORS[operator].rule
    if rule is None:
        raise ExprError(f"'{operator}' is not an operator of whole numbers")
    return rule


def _negated(node: Expr, outer: int) -> str:
    inner = node.text(NEGATION + 1)
    plain = f"-({inner})" if isinstance(node, Const) and not inner.startswith("(") else f"-{inner}"
    return f"({plain})" if outer > SUM else plain


def applied(operator: str, args: tuple[Expr, ...], dtype: str = "int") -> Expr:
    """Return the plain node of an operator, nothing folded."""
    if operator == "select":
        return Select(args[0], args[1], args[2], dtype)
    return Binary(operator, args[0], args[1], dtype) if len(args) == 2 else Call(operator, args, dtype)


def expr(value: IntLike) -> Expr:
    """Return an int (or NumPy integer, or bool) as an expression; an expression as it is."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, (bool, int, np.integer, np.bool_)):
        return Const(int(value))
    raise ExprError(f"{value!r} is not an integer")


def constant(value: IntLike) -> int | None:
    """Return the number if it is one, else None."""
    if isinstance(value, Const):
        return value.value
    return None if isinstance(value, Expr) else int(value)


def binary(operator: str, left: IntLike, right: IntLike) -> Expr:
    """Return ``left operator right`` with constants folded and neutral elements dropped."""
    a = left if isinstance(left, Expr) else expr(left)
    b = right if isinstance(right, Expr) else expr(right)
    if isinstance(b, Const):
        if isinstance(a, Const):
            return Const(int(_rule(operator)(a.value, b.value)))
        short = _with_constant(operator, a, b.value)
        if short is not None:
            return short
    if isinstance(a, Const) and operator in ("+", "*"):
        return binary(operator, b, a)
    if operator in _SAME and a == b:
        return Const(_SAME[operator])
    return Binary(operator, a, b)


_SAME = {"-": 0, "==": 1, "<=": 1, ">=": 1, "!=": 0, "<": 0, ">": 0, "^": 0}


def _with_constant(operator: str, a: Expr, b: int) -> Expr | None:
    neutral = 0 if operator in ("+", "-", "|", "^", "<<", ">>") else 1 if operator in ("*", "//") else None
    if b == neutral:
        return a
    if (operator in ("*", "&") and b == 0) or (operator == "%" and b == 1):
        return ZERO
    if not isinstance(a, Binary) or not isinstance(a.right, Const):
        return None
    inner = a.right.value
    if operator in ("+", "-") and a.operator in ("+", "-"):
        total = (inner if a.operator == "+" else -inner) + (b if operator == "+" else -b)
        return binary("+", a.left, total) if total >= 0 else binary("-", a.left, -total)
    if operator == "*" and a.operator == "*":
        return binary("*", a.left, inner * b)
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
    """Return ``then`` where ``condition`` is not 0, else ``otherwise``."""
    known = constant(condition)
    if known is not None:
        return expr(then if known else otherwise)
    a, b = expr(then), expr(otherwise)
    return a if a == b else Select(expr(condition), a, b)


def table(values: tuple[int, ...] | list[int], index: IntLike) -> Expr:
    """Return ``values[index]`` (the index is clamped to the table)."""
    if not len(values):
        raise ExprError("a table needs at least one value")
    numbers = tuple(int(v) for v in values)
    known = constant(index)
    if known is not None:
        return Const(numbers[min(max(known, 0), len(numbers) - 1)])
    if all(v == numbers[0] for v in numbers):
        return Const(numbers[0])
    return Table(numbers, expr(index))


def walk(node: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, outermost first."""
    yield node
    for child in node.children():
        yield from walk(child)


def rebuild(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with ``change`` applied to every node, innermost first."""
    children = node.children()
    if children:
        changed = [rebuild(child, change) for child in children]
        if any(new is not old for new, old in zip(changed, children, strict=True)):
            node = node.rebuilt(*changed)
    return change(node)


def symbols(node: IntLike) -> frozenset[str]:
    """Return the names an expression depends on."""
    if isinstance(node, Symbol):
        return frozenset((node.name,))
    found, left = set[str](), [node] if isinstance(node, Expr) else []
    while left:
        part = left.pop()
        if isinstance(part, Symbol):
            found.add(part.name)
        else:
            left += part.children()
    return frozenset(found)


def substitute(node: Expr, values: Mapping[str, IntLike]) -> Expr:
    """Return the expression with symbols replaced, and folded where that makes numbers known."""

    def change(part: Expr) -> Expr:
        if isinstance(part, Symbol):
            return expr(values[part.name]) if part.name in values else part
        return folded(part)

    return rebuild(node, change)


def folded(node: Expr) -> Expr:
    """Return a whole-number node put together again by ``binary``, ``select`` or ``table``; others as they
    are. A division by zero stays as it is written."""
    if node.dtype != "int":
        return node
    if isinstance(node, Binary):
        if node.operator in DIVISIONS and node.right == ZERO:
            return node
        rule = OPERATORS[node.operator].rule
        return node if rule is None else binary(node.operator, node.left, node.right)
    if isinstance(node, Select):
        return select(*node.children())
    return table(node.values, node.index) if isinstance(node, Table) else node


unit = Symbol("unit")
member = Symbol("member")
ZERO, ONE = Const(0), Const(1)
