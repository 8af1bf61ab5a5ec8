"""Scalar functions in TileLang's spelling."""

from __future__ import annotations

import math
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np

from megatile.compat.tilelang.dtypes import FP8, NAMES, dtype as Dtype
from megatile.compat.tilelang.vectors import Vector, reinterpreted
from megatile.core.dtypes import is_float, itemsize, numpy_dtype
from megatile.core.expr import Const, known, simplify
from megatile.language.tile import functions as f
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.operations import element_of
from megatile.language.tile.regions import operand
from megatile.language.tile.scalars import Value, operate
from megatile.language.tile.tiles import Ref, Tile


def _operator(op: str) -> Any:
    def function(a: Any, b: Any, *_: Any) -> Any:
        return operate(op, a, b)

    function.__name__ = op
    return function


floordiv, floormod = truncdiv, truncmod = _operator("//"), _operator("%")
shift_left, shift_right = _operator("<<"), _operator(">>")
bitwise_and, bitwise_or, bitwise_xor = _operator("&"), _operator("|"), _operator("^")
Div = fdiv = _operator("/")


def bitwise_not(a: Any) -> Any:
    return ~a


def Cast(dtype: Any, value: Any) -> Any:
    """``value`` as another dtype (the dtype first)."""
    return cast(value, dtype)


class CastError(ProgramError, ValueError):
    """Arguments of a cast that have no meaning."""


ROUNDINGS = ("", "rn", "rz", "rm", "rp", "ru", "rd", "ra", "rna", "rs")


def cast(value: Any, dtype: Any, *_: Any, round: Any = None, sat: Any = None, rbits: Any = None) -> Any:
    """``value`` as another dtype, rounded to the nearest; casts to fp8 saturate."""
    if round is not None and round not in ROUNDINGS:
        raise CastError(f"Invalid round={round!r}", advice=f"one of {', '.join(filter(None, ROUNDINGS))}")
    if sat is not None and not isinstance(sat, bool):
        raise CastError(f"Invalid sat={sat!r}", advice="True or False")
    if round == "rs" and rbits is None:
        raise CastError("rbits is required for round='rs'", advice="rbits=bits")
    if rbits is not None and round != "rs":
        raise CastError("rbits is only valid for round='rs'", advice="leave it out")
    kind = Dtype(dtype)
    if round not in (None, "", "rn") or (sat is not None and sat != (kind.short in FP8)):
        raise ProgramError(
            f"T.cast with round={round!r}, sat={sat!r}",
            advice="numbers are rounded to the nearest, fp8 saturates: leave both out",
        )
    return kind(value)


def reinterpret(value: Any, dtype: Any) -> Any:
    """The bits of ``value`` read as another dtype (in either order of the arguments)."""
    if isinstance(value, (str, Dtype)):
        value, dtype = dtype, value
    if dtype == "handle":  # an address, which nothing here reads
        return value
    kind = Dtype(dtype)
    if isinstance(value, Vector) or kind.lanes > 1:
        return reinterpreted(
            value if isinstance(value, Vector) else Vector((value,)), kind.element.short, kind.lanes
        )
    return f.bitcast(value, kind.short)


def isfinite(x: Any) -> Any:
    return operate("and", operate("==", x, x), operate("!=", f.abs(x), float("inf")))


def clamp(x: Any, min_val: Any, max_val: Any) -> Any:
    return f.clamp(x, min_val, max_val)


def align_up(x: Any, y: Any) -> Any:
    """The next multiple of ``y``."""
    return f.ceildiv(x, y) * y


def infinity(dtype: Any = "float32") -> Any:
    """The infinity of a dtype."""
    short = Dtype(dtype).short
    return float("inf") if is_float(short) else int(np.iinfo(numpy_dtype(short)).max)


def max_value(dtype: Any) -> Any:
    short = Dtype(dtype).short
    if is_float(short):
        import ml_dtypes

        return float(ml_dtypes.finfo(numpy_dtype(short)).max)
    return int(np.iinfo(numpy_dtype(short)).max)


def min_value(dtype: Any) -> Any:
    short = Dtype(dtype).short
    return -max_value(dtype) if is_float(short) else int(np.iinfo(numpy_dtype(short)).min)


def power(x: Any, y: Any) -> Any:
    return operate("**", x, y) if isinstance(x, Value) or isinstance(y, Value) else x**y


def exp10(x: Any) -> Any:
    return f.exp2(x * math.log2(10))


def log10(x: Any) -> Any:
    return f.log(x) / math.log(10)


def log1p(x: Any) -> Any:
    return f.log(x + 1)


def tan(x: Any) -> Any:
    return f.sin(x) / f.cos(x)


class FastError(ProgramError, TypeError):
    """A fast function of something that is no float."""


def fast(word: str, exact: Any) -> Any:
    """A fast function of CUDA: the exact one, of floats only."""

    def function(x: Any) -> Any:
        kind = x.dtype if isinstance(x, Value) else "float"
        if kind != "float" and not (is_float(kind) and itemsize(kind) > 1):
            name = next((name for name in NAMES if kind != "int" and Dtype(name).short == kind), "int32")
            raise FastError(
                f"T.__{word} only supports floating-point inputs, but got {name}", advice=f"T.{word}(x)"
            )
        return exact(x)

    function.__name__ = function.__qualname__ = f"__{word}"
    return function


def fast_rcp(x: Any) -> Any:
    return 1.0 / x


def isnan(x: Any) -> Any:
    return operate("!=", x, x)


def isinf(x: Any) -> Any:
    return operate("==", f.abs(x), float("inf"))


def round(x: Any, *_: Any) -> Any:
    """The nearest whole number, halves to the even one."""
    return f.round(x)


def trunc(x: Any) -> Any:
    return f.if_then_else(x < 0, f.ceil(x), f.floor(x))


def likely(condition: Any, *_: Any) -> Any:
    return condition


MAX_ELEMENTS = 1024
"""Most elements of a region that one condition may combine."""


def _conditions(given: tuple[Any, ...]) -> list[Any]:
    """Conditions, or the elements of the one region or tile that is given."""
    first = given[0]
    if len(given) > 1 or not (isinstance(first, Tile) or (isinstance(first, Ref) and not first.is_element)):
        return list(given)
    side = operand(first, "the elements of T.any_of or T.all_of")
    extents = [known(simplify(extent)) for extent in side.extents]
    if any(e is None for e in extents) or math.prod(e or 0 for e in extents) > MAX_ELEMENTS:
        raise ProgramError(
            f"T.any_of or T.all_of of '{side.tile.name}'", advice=f"give at most {MAX_ELEMENTS} elements"
        )
    places = product(*(range(e or 0) for e in extents))
    return [operate("!=", element_of(side, [Const(i) for i in place]), 0) for place in places]


def any_of(*given: Any) -> Any:
    """Whether any of some conditions holds, or any element of a region is not zero."""
    return reduce(partial(operate, "or"), _conditions(given))


def all_of(*given: Any) -> Any:
    return reduce(partial(operate, "and"), _conditions(given))


def Not(value: Any) -> Any:
    return operate("not", value) if isinstance(value, Value) else not value


def fma(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def const_value(number: Any, dtype: Any = "int32", *_: Any) -> Any:
    """A number of a dtype: ``tirx.const``."""
    return cast(number, dtype)
