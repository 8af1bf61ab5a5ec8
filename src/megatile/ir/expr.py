"""Scalar expressions of a Program: six kinds of frozen nodes and one table of operators.

The weak types ``int``, ``float`` and ``bool`` belong to constants written in Python; beside a tile's dtype
they give way to it, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

WEAK = ("bool", "int", "float")


@dataclass(frozen=True)
class Const:
    """A number known while building."""

    value: int | float | bool
    dtype: str = "int"


@dataclass(frozen=True)
class Var:
    """A loop index, a scalar held in a variable, a number read at run time, or a symbolic extent."""

    name: str
    dtype: str = "int"


@dataclass(frozen=True)
class Coord:
    """One coordinate of this unit (or its ancestor) at a scale, under its launch parent."""

    scale: str
    axis: int
    dtype: str = "int"


@dataclass(frozen=True)
class Rank:
    """The number of this unit (or its ancestor) of ``scale`` among all below one unit of ``within``."""

    scale: str
    within: str
    dtype: str = "int"


@dataclass(frozen=True)
class Load:
    """One element of a tile, view or tensor."""

    source: str
    index: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True)
class Apply:
    """An operator of the table ``OPERATORS`` on its arguments; ``dtype`` is the type of the result."""

    op: str
    args: tuple[Expr, ...]
    dtype: str = "int"


Expr = Const | Var | Coord | Rank | Load | Apply


@dataclass(frozen=True)
class Operator:
    """How an operator is written and typed.

    ``symbol`` is its infix form, ``result`` one of ``same`` (promoted type of the arguments), ``float``
    (promoted, but at least f32), ``bool``, or ``cast`` (given by the node).
    """

    name: str
    arity: int
    result: str = "same"
    symbol: str = ""
    strength: int = 0


_INFIX = (
    ("or", "or", 1, "bool"),
    ("and", "and", 2, "bool"),
    ("lt", "<", 4, "bool"),
    ("le", "<=", 4, "bool"),
    ("gt", ">", 4, "bool"),
    ("ge", ">=", 4, "bool"),
    ("eq", "==", 4, "bool"),
    ("ne", "!=", 4, "bool"),
    ("bitor", "|", 5, "same"),
    ("xor", "^", 6, "same"),
    ("bitand", "&", 7, "same"),
    ("shl", "<<", 8, "same"),
    ("shr", ">>", 8, "same"),
    ("add", "+", 9, "same"),
    ("sub", "-", 9, "same"),
    ("mul", "*", 10, "same"),
    ("div", "/", 10, "float"),
    ("floordiv", "//", 10, "same"),
    ("mod", "%", 10, "same"),
    ("pow", "**", 12, "same"),
)
_FLOAT_CALLS = ["exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid"]

OPERATORS: dict[str, Operator] = {
    **{name: Operator(name, 2, result, symbol, strength) for name, symbol, strength, result in _INFIX},
    **{name: Operator(name, 1, "float") for name in _FLOAT_CALLS},
    "neg": Operator("neg", 1, symbol="-", strength=11),
    "not": Operator("not", 1, "bool", symbol="not", strength=3),
    "abs": Operator("abs", 1),
    "floor": Operator("floor", 1),
    "ceil": Operator("ceil", 1),
    "max": Operator("max", 2),
    "min": Operator("min", 2),
    "ceildiv": Operator("ceildiv", 2),
    "if_then_else": Operator("if_then_else", 3),
    "cast": Operator("cast", 1, "cast"),
}


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions."""
    if isinstance(expr, Apply):
        return expr.args
    return expr.index if isinstance(expr, Load) else ()


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, outermost first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with ``change`` applied to every node, innermost first."""
    if isinstance(expr, Apply):
        expr = Apply(expr.op, tuple(rebuild(a, change) for a in expr.args), expr.dtype)
    elif isinstance(expr, Load):
        expr = Load(expr.source, tuple(rebuild(i, change) for i in expr.index), expr.dtype)
    return change(expr)


def loads(expr: Expr) -> Iterator[Load]:
    """Every element the expression reads."""
    return (node for node in walk(expr) if isinstance(node, Load))


def free_names(expr: Expr) -> set[str]:
    """Names of the variables the expression uses."""
    return {node.name for node in walk(expr) if isinstance(node, Var)}


def integer(value: int) -> Const:
    return Const(int(value), "int")
