"""Values of a kernel that are known only at run time: what ``rank``, ``k`` or ``A[i, j]`` are while building.

They wrap an expression of the Program; arithmetic on them makes larger expressions. Results that are
plain numbers come back as Python numbers, so build-time code needs no special care.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from megatile.ir.affine import simplify
from megatile.ir.expr import OPERATORS, WEAK, Apply, Const, Expr
from megatile.ir.typing import apply
from megatile.language.tile.errors import ProgramError

_OF_NUMPY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "floor_divide": "floordiv",
    "remainder": "mod", "power": "pow", "negative": "neg", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}  # fmt: skip
"""NumPy's names of Python's operators, which its own numbers use."""
_INSTEAD = {"maximum": "max", "minimum": "min", "absolute": "abs"}


class Value:
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

    @property
    def expr(self) -> Expr:
        return self._expr

    @property
    def dtype(self) -> str:
        return self.expr.dtype

    def __add__(self, other: Any) -> Any:
        return operate("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return operate("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return operate("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return operate("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return operate("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return operate("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return operate("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return operate("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return operate("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return operate("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return operate("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return operate("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        return operate("pow", self, other)

    def __rpow__(self, other: Any) -> Any:
        return operate("pow", other, self)

    def __and__(self, other: Any) -> Any:
        return operate("bitand", self, other)

    def __or__(self, other: Any) -> Any:
        return operate("bitor", self, other)

    def __xor__(self, other: Any) -> Any:
        return operate("xor", self, other)

    def __lshift__(self, other: Any) -> Any:
        return operate("shl", self, other)

    def __rshift__(self, other: Any) -> Any:
        return operate("shr", self, other)

    def __rand__(self, other: Any) -> Any:
        return operate("bitand", other, self)

    def __ror__(self, other: Any) -> Any:
        return operate("bitor", other, self)

    def __rxor__(self, other: Any) -> Any:
        return operate("xor", other, self)

    def __rlshift__(self, other: Any) -> Any:
        return operate("shl", other, self)

    def __rrshift__(self, other: Any) -> Any:
        return operate("shr", other, self)

    def __neg__(self) -> Any:
        return operate("neg", self)

    def __invert__(self) -> Any:
        return operate("not", self) if self.dtype == "bool" else operate("xor", self, -1)

    def __abs__(self) -> Any:
        return operate("abs", self)

    def __lt__(self, other: Any) -> Any:
        return operate("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return operate("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return operate("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return operate("ge", self, other)

    def __eq__(self, other: Any) -> Any:
        return operate("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return operate("ne", self, other)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        from megatile.ir.printer import show_expr

        return show_expr(self.expr)

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
    """The expression of a number, a value or an element of a tile."""
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
            advice=f"write for i in T.Parallel({', '.join(map(str, value.shape))}): ... {name}[i] ...",
        )
    raise ProgramError(
        f"{value!r} is not a number of the program", advice="use numbers, indices and tile elements"
    )


def as_value(expr: Expr) -> Any:
    """A Python number if the expression is one, otherwise a Value."""
    if isinstance(expr, Const) and expr.dtype in WEAK:
        return expr.value
    return Value(expr)


def plain(value: Any) -> Any:
    """A Python number where the value is one after all (a symbolic extent that has been bound)."""
    return as_value(value.expr) if isinstance(value, Value) else value


def operate(op: str, *values: Any) -> Any:
    """An operator on numbers and values."""
    for value in values:
        if getattr(value, "foreign_operand", False):
            return NotImplemented
    exprs = tuple(as_expr(v) for v in values)
    if op in ("floordiv", "mod", "div", "ceildiv") and isinstance(exprs[1], Const) and exprs[1].value == 0:
        raise ProgramError(
            f"{values[0]!r} is divided by zero", advice="the divisor is 0 while building: check it"
        )
    return as_value(_fold(apply(op, *exprs)))


def _fold(expr: Apply) -> Expr:
    """Whole-number arithmetic is folded at once; the rest stays as it was written."""
    if expr.dtype == "int" or (expr.dtype == "bool" and all(a.dtype in ("int", "bool") for a in expr.args)):
        return simplify(expr)
    if expr.op == "neg" and isinstance(expr.args[0], Const):
        return Const(-expr.args[0].value, expr.dtype)
    return expr
