"""Scalar functions of kernels; on plain numbers they are computed while building."""

from __future__ import annotations

import math as _math
from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.arguments import no_none
from megatile.core.dtypes import dtype as dtype_name, is_float, itemsize, numpy_dtype
from megatile.core.expr import WEAK, applied
from megatile.core.expr.typing import cast as cast_expr
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr, as_value, operate


def _unary(op: str, plain: Callable[[float], Any]) -> Callable[[Any], Any]:
    @no_none
    def function(x: Any) -> Any:
        return operate(op, x) if isinstance(x, Value) or hasattr(x, "storage") else plain(x)

    function.__name__ = op
    function.__doc__ = f"{op} of a number of the program."
    return function


_PLAIN: dict[str, Callable[[float], Any]] = {
    "exp": _math.exp,
    "exp2": lambda x: 2.0**x,
    "log": _math.log,
    "log2": _math.log2,
    "sqrt": _math.sqrt,
    "rsqrt": lambda x: 1 / _math.sqrt(x),
    "sin": _math.sin,
    "cos": _math.cos,
    "tanh": _math.tanh,
    "erf": _math.erf,
    "sigmoid": lambda x: 1 / (1 + _math.exp(-x)),
    "abs": lambda x: x if x >= 0 else -x,
    "floor": _math.floor,
    "ceil": _math.ceil,
}
exp, exp2, log, log2, sqrt, rsqrt, sin, cos, tanh, erf, sigmoid, abs, floor, ceil = (
    _unary(op, plain) for op, plain in _PLAIN.items()
)


@no_none
def silu(x: Any) -> Any:
    """Return ``x * sigmoid(x)``."""
    return x * sigmoid(x)


def _symbolic(*values: Any) -> bool:
    return any(isinstance(v, Value) or hasattr(v, "storage") for v in values)


@no_none
def max(first: Any, *rest: Any) -> Any:
    """Return the largest of two or more numbers."""
    for value in rest:
        first = (
            operate("max", first, value) if _symbolic(first, value) else (first if first >= value else value)
        )
    return first


@no_none
def min(first: Any, *rest: Any) -> Any:
    """Return the smallest of two or more numbers."""
    for value in rest:
        first = (
            operate("min", first, value) if _symbolic(first, value) else (first if first <= value else value)
        )
    return first


@no_none
def clamp(x: Any, low: Any, high: Any) -> Any:
    """Return ``x`` kept between ``low`` and ``high``."""
    return min(max(x, low), high)


@no_none
def if_then_else(condition: Any, then: Any, orelse: Any) -> Any:
    """Return ``then`` where the condition holds, otherwise ``orelse``; both are computed."""
    if not isinstance(condition, Value):
        return then if condition else orelse
    return operate("select", condition, then, orelse)


@no_none
def round(x: Any) -> Any:
    """Return the nearest whole number, halves to the even one, in the dtype of ``x``."""
    if not _symbolic(x):
        return _math.floor(x) if x % 1 < 0.5 or (x % 1 == 0.5 and _math.floor(x) % 2 == 0) else _math.ceil(x)
    low = floor(x)
    rest = operate("-", x, low)
    odd = operate("!=", operate("*", floor(operate("*", low, 0.5)), 2.0), low)
    up = operate("or", operate(">", rest, 0.5), operate("and", operate("==", rest, 0.5), odd))
    return if_then_else(up, operate("+", low, 1.0), low)


def cast(x: Any, dtype: Any) -> Any:
    """Return ``x`` rounded to another dtype."""
    return as_value(cast_expr(as_expr(x), dtype_name(dtype)))


def bitcast(x: Any, dtype: Any) -> Any:
    """Return the bits of ``x`` read as another dtype of the same size."""
    value, name = as_expr(x), dtype_name(dtype)
    if value.dtype in WEAK or itemsize(value.dtype) != itemsize(name):
        raise ProgramError(
            f"the bits of {value.dtype} cannot be read as {name}",
            advice="both have the same size; cast a number first: T.cast(x, 'f32')",
        )
    return as_value(applied("bitcast", (value,), name))


def infinity(dtype: Any = "f32") -> float:
    """Return the infinity of a dtype (its largest number if it has none)."""
    name = dtype_name(dtype)
    if name == "f8e4m3":
        return 448.0
    return float("inf") if is_float(name) else int(np.iinfo(numpy_dtype(name)).max)


@no_none
def ceildiv(a: Any, b: Any) -> Any:
    """Return ``a / b``, rounded up."""
    return operate("ceildiv", a, b) if _symbolic(a, b) else -(-a // b)


class DType(str):
    """A name of an element type that can be called; equal to the name."""

    def __call__(self, value: Any) -> Any:
        return cast(value, str(self))


DTYPES = {
    name: DType(dtype_name(name))
    for name in (
        "float64", "float32", "float16", "bfloat16", "tfloat32", "float8_e4m3", "float8_e4m3fn",
        "float8_e5m2", "float8_e8m0", "float8_e8m0fnu", "float4_e2m1", "float4_e2m1fn", "int64", "int32",
        "int16", "int8", "int4", "uint64", "uint32", "uint16", "uint8", "uint4", "bool",
    )
}  # fmt: skip
"""Element types by the names ``T`` gives them: ``T.float16`` is what "f16" is, ``T.float16(x)`` converts."""
