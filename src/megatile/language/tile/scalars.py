"""Values of a kernel that are known only at run time: what ``rank``, ``k`` or ``A[i, j]`` are while building.

They wrap an expression of the Program; arithmetic on them makes larger expressions. Results that are
plain numbers come back as Python numbers, so build-time code needs no special care.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.expr import DIVISIONS, OPERATORS, WEAK, Arithmetic, Call, Const, Expr, simplify
from megatile.core.expr.typing import apply, cast
from megatile.language.tile.errors import ProgramError

_OF_NUMPY = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "floor_divide": "//",
    "remainder": "%", "power": "**", "negative": "neg", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
"""NumPy's names of Python's operators, which its own numbers use."""
_INSTEAD = {"maximum": "max", "minimum": "min", "absolute": "abs"}


class Value(Arithmetic):
    """A scalar of the running program."""

    __slots__ = ("_expr",)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """``np.float32(2) * x`` is an operator; NumPy's functions have no meaning here."""
        name = ufunc.__name__
        if method == "__call__" and name in _OF_NUMPY:
            return operate(_OF_NUMPY[name], *inputs)
        word = _INSTEAD.get(name, name)
        raise ProgramError(
            f"np.{name} of a value known only when the program runs",
            advice=f"write T.{word}" if word in _WORDS else "use the functions of T",
        )

    def __init__(self, expr: Expr):
        self._expr = expr

    @staticmethod
    def operate(operator: str, left: Any, right: Any) -> Any:
        return operate(operator, left, right)

    @property
    def expr(self) -> Expr:
        return self._expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype

    def astype(self, dtype: Any) -> Any:
        """Return this value rounded to another dtype."""
        return as_value(cast(self.expr, dtype_name(dtype)))

    def __truediv__(self, other: Any) -> Any:
        return operate("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return operate("/", other, self)

    def __pow__(self, other: Any) -> Any:
        return operate("**", self, other)

    def __rpow__(self, other: Any) -> Any:
        return operate("**", other, self)

    def __neg__(self) -> Any:
        return operate("neg", self)

    def __invert__(self) -> Any:
        return operate("not", self) if self.dtype == "bool" else operate("^", self, -1)

    def __abs__(self) -> Any:
        return operate("abs", self)

    def __eq__(self, other: Any) -> Any:
        return operate("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return operate("!=", self, other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.expr.text()

    def __format__(self, spec: str) -> NoReturn:
        raise _too_early(self, "put into a text", "give the value to T.print(...) instead")

    def __bool__(self) -> NoReturn:
        raise _too_early(
            self, "a Python condition", "write the 'if' in the @T.program itself or in a @T.macro, "
            "or use T.if_then_else(condition, a, b)"
        )  # fmt: skip

    def __index__(self) -> NoReturn:
        raise _too_early(
            self, "needed as a Python number", "use T.serial(...) for loops, constants for shapes"
        )

    __int__ = __index__

    def __float__(self) -> NoReturn:
        raise _too_early(self, "needed as a Python number", "use the functions of T, e.g. T.exp")


def _too_early(value: Value, use: str, advice: str) -> ProgramError:
    return ProgramError(f"{value!r} is known only when the program runs, and is {use}", advice=advice)


_WORDS = {*_INSTEAD.values(), *OPERATORS}


class Rank(Value):
    """The number of this unit among its siblings; ``.size`` of them, at ``.coords``. Unpacks to (rank,
    size)."""

    __slots__ = ("coords", "size")

    def __init__(self, expr: Expr, size: int, coords: tuple[Any, ...]):
        super().__init__(expr)
        self.size = size
        self.coords = coords

    def __iter__(self) -> Iterator[Any]:
        return iter((self, self.size))


class Coordinate(Value):
    """The only coordinate of a launch with one dimension; ``as (bx,)`` works as well as ``as bx``."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        return iter((self,))


def as_expr(value: Any) -> Expr:
    """Return the expression of a number, a value or an element of a tile."""
    if isinstance(value, Value):
        return value.expr
    if isinstance(value, (bool, np.bool_)):
        return Const(bool(value), "bool")
    if isinstance(value, (int, np.integer)):
        return Const(int(value), "int")
    if isinstance(value, (float, np.floating)):
        return Const(float(value), "float")
    name = getattr(value, "name", None)
    if name is not None and hasattr(value, "shape"):
        raise ProgramError(
            f"'{name}' is a whole tile where a single number is needed",
            advice=_each_element(name, value.shape),
        )
    raise ProgramError(
        f"{value!r} is not a number of the program", advice="use numbers, indices and tile elements"
    )


def _each_element(name: str, shape: tuple[Any, ...]) -> str:
    letters = ", ".join("ijklmn"[: len(shape)]) if len(shape) <= 6 else "*i"
    return f"write for {letters} in T.Parallel({', '.join(map(str, shape))}): ... {name}[{letters}] ..."


def as_value(expr: Expr) -> Any:
    """Return a Python number if the expression is one, otherwise a Value."""
    if isinstance(expr, Const) and expr.dtype in WEAK:
        return expr.value
    return Value(expr)


def plain(value: Any) -> Any:
    """Return a Python number where the value is one after all (a symbolic extent that has been bound)."""
    return as_value(value.expr) if isinstance(value, Value) else value


def operate(op: str, *values: Any) -> Any:
    """Return an operator on numbers and values."""
    for value in values:
        if getattr(value, "foreign_operand", False):
            return NotImplemented
    exprs = tuple(as_expr(v) for v in values)
    if op in ("/", *DIVISIONS) and isinstance(exprs[1], Const) and exprs[1].value == 0:
        raise ProgramError(
            f"{values[0]!r} is divided by zero", advice="the divisor is 0 while building: check it"
        )
    return as_value(_fold(apply(op, *exprs)))


def _fold(expr: Any) -> Expr:
    """Whole-number arithmetic is folded at once; the rest stays as it was written."""
    if expr.dtype == "int" or (expr.dtype == "bool" and all(a.dtype in ("int", "bool") for a in expr.args)):
        return simplify(expr)
    if isinstance(expr, Call) and expr.operator == "neg" and isinstance(expr.args[0], Const):
        return Const(-expr.args[0].value, expr.dtype)
    return expr
