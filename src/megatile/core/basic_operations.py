"""Operations on tiles: name, NumPy meaning, work. Each meaning stands here once, for the interpreter of the
tile language, for Plan execution and for folding constants.

An operation is a function of arrays and attributes that works on the *trailing* axes, so leading axes may be
a batch of units. It computes in the wider type given by ``accumulator`` where rounding in between would
matter (reductions, softmax, gemm) and leaves the final rounding to the caller, who casts to the type of the
destination:

>>> apply("gemm", [np.ones((2, 3), "f2"), np.ones((3, 4), "f2")], "f16").dtype
dtype('float16')
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import accumulator, dtype, is_float, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.registry import Registry

Array = Any  # np.ndarray; ml_dtypes arrays have no useful static type
Shape = tuple[Any, ...]


class OperationError(MegatileError, ValueError):
    """An operation used with the wrong number of operands, shapes or attributes."""


@dataclass(frozen=True)
class Operation:
    """One entry of the table.

    ``meaning(*arrays, **attributes)``; ``shape(*shapes, **attributes)`` gives the result's shape;
    ``flops(result shape, *shapes)`` counts floating point operations (extents may be ints or expressions);
    ``operands`` is how many it takes (-1: any number), ``engine`` where it runs by default. ``into``, where
    given, computes straight into the destination:
    ``into(out, *arrays)`` (no temporary array). ``accumulates`` says that the destination's old content is
    the last operand.
    """

    name: str
    meaning: Callable[..., Array]
    operands: int
    engine: str
    shape: Callable[..., Shape]
    flops: Callable[..., Any]
    into: Callable[..., Any] | None = None
    accumulates: bool = False
    attributes: tuple[str, ...] = ()


OPERATIONS: Registry[Operation] = Registry("operations")


def register(operations: Iterable[Operation]) -> None:
    for operation in operations:
        OPERATIONS.add(operation.name, operation)


def apply(name: str, arrays: Sequence[Array], to: str, **attributes: Any) -> Array:
    """Return the operation's result, rounded to dtype ``to``."""
    result = OPERATIONS[name].meaning(*arrays, **attributes)
    return cast(result, to)


def cast(array: Array, to: str) -> Array:
    """Convert as the target type rounds; floats beyond an integer type's range are clipped."""
    target = numpy_dtype(to)
    array = np.asarray(array)
    if to == "tf32":
        return _tf32(array)
    if array.dtype == target:
        return array
    if not is_float(to) and to != "bool" and array.dtype.kind not in "iub":
        return _whole(array.astype(np.float64), target)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(target)


def _tf32(array: Array) -> Array:
    """Return floats rounded to the 10 bits that tf32 has behind the point, ties to even."""
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.ascontiguousarray(array, np.float32)
    bits = whole.view(np.uint32)
    rounded = ((bits + (0xFFF + ((bits >> 13) & 1))) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(whole), rounded, whole).reshape(array.shape)


def _whole(array: Array, target: np.dtype[Any]) -> Array:
    """Return floats cut to whole numbers of a type; NaN gives 0, what is out of range the nearest end."""
    if target.kind in "iu":
        limits: Any = np.iinfo(target)
    else:  # of 4 bits
        import ml_dtypes

        limits = ml_dtypes.iinfo(target)
    array = np.nan_to_num(array, nan=0.0)
    inside = np.clip(array, limits.min, limits.max)
    top = array >= limits.max  # which may lie between two floats
    return np.where(top, limits.max, np.where(top, 0, inside).astype(target)).astype(target)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """NumPy's broadcasting of shapes whose extents may be expressions (equal ones match)."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_common(extents, shapes) for extents in zip(*padded, strict=True))


def _common(extents: tuple[Any, ...], shapes: tuple[Shape, ...]) -> Any:
    wide = [e for e in extents if not (isinstance(e, int) and e == 1)]
    if not wide:
        return 1
    if any(e != wide[0] for e in wide[1:]):
        text = " and ".join(str(tuple(map(str, s))).replace("'", "") for s in shapes)
        raise OperationError(f"shapes {text} do not fit together")
    return wide[0]


# --- elementwise ----------------------------------------------------------------------------------


def _wide(array: Array) -> Array:
    """Return floats narrower than f32 as f32: transcendental functions round once, at the end."""
    array = np.asarray(array)
    name = dtype(array.dtype)
    return array.astype(np.float32) if is_float(name) and name not in ("f32", "f64") else array


def _divide(a: Array, b: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        if np.issubdtype(np.asarray(a).dtype, np.integer) and np.issubdtype(np.asarray(b).dtype, np.integer):
            return np.floor_divide(a, b)
        return np.divide(a, b)


def _quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    """Infinities and NaNs are values here, not warnings."""

    def meaning(*arrays: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(*[_wide(a) for a in arrays])

    return meaning


def _erf(x: Array) -> Array:
    # Abramowitz and Stegun 7.1.26 is good to 1.5e-7, just short of f32; math.erf is exact and fast enough on
    # tiles.
    from math import erf

    return np.vectorize(erf, otypes=[np.float64])(x).astype(np.asarray(x).dtype)


_UFUNCS: dict[str, tuple[int, Any]] = {
    "add": (2, np.add), "sub": (2, np.subtract), "mul": (2, np.multiply), "maximum": (2, np.maximum),
    "minimum": (2, np.minimum), "neg": (1, np.negative), "abs": (1, np.abs),
}  # fmt: skip
"""Operations that NumPy computes straight into the destination."""
_COMPARISONS: dict[str, Any] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": _erf,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
_ELEMENTWISE: dict[str, tuple[int, Callable[..., Array], int]] = {
    **{name: (count, ufunc, 1) for name, (count, ufunc) in _UFUNCS.items()},
    **{name: (2, ufunc, 1) for name, ufunc in _COMPARISONS.items()},
    **{name: (1, _quiet(function), 8) for name, function in _FUNCTIONS.items()},
    "div": (2, _divide, 4),
    "pow": (2, _quiet(np.power), 8),
    "fma": (3, lambda a, b, c: _wide(a) * _wide(b) + _wide(c), 2),
    "clamp": (3, lambda x, low, high: np.minimum(np.maximum(x, low), high), 2),
    "where": (3, lambda c, a, b: np.where(np.asarray(c).astype(bool), a, b), 1),
    "floor": (1, _quiet(np.floor), 1),
    "ceil": (1, _quiet(np.ceil), 1),
}
"""How many operands, the meaning, and floating point operations per element."""
register(
    Operation(
        name,
        meaning,
        operands,
        "vector",
        shape=lambda *shapes, **_: broadcast_shapes(*shapes),
        flops=lambda out, *_, cost=cost: cost * prod(out),
        into=_UFUNCS[name][1] if name in _UFUNCS else None,
    )
    for name, (operands, meaning, cost) in _ELEMENTWISE.items()
)


# --- reductions -----------------------------------------------------------------------------------


def _drop_axis(shape: Shape, axis: int = -1, keepdims: bool = False) -> Shape:
    at = len(shape) + axis if axis < 0 else axis
    if not 0 <= at < len(shape):
        raise OperationError(f"axis {axis} is outside a tile of {len(shape)} dimensions")
    return tuple(shape[:at]) + ((1,) if keepdims else ()) + tuple(shape[at + 1 :])


def _reduction(name: str, function: Callable[..., Array], combine: str) -> None:
    """Register a reduction of one axis, and ``<name>_onto``, which goes on from the destination's old
    content."""

    def meaning(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
        x = np.asarray(x)
        wide = x.astype(numpy_dtype(accumulator(dtype(x.dtype))))
        return function(wide, axis=axis, keepdims=keepdims)

    def onto(x: Array, old: Array, axis: int = -1) -> Array:
        result = meaning(x, axis)
        return OPERATIONS[combine].meaning(result, np.asarray(old).reshape(result.shape).astype(result.dtype))

    register(
        Operation(
            word, rule, count, "vector", lambda x, *_, **kept: _drop_axis(x, **kept),
            lambda out, x, *_, **__: prod(x), accumulates=count == 2, attributes=attributes,
        )
        for word, rule, count, attributes in (
            (name, meaning, 1, ("axis", "keepdims")),
            (f"{name}_onto", onto, 2, ("axis",)),
        )
    )  # fmt: skip


for _name, _function, _combine in (
    ("sum", np.sum, "add"),
    ("max", np.max, "maximum"),
    ("min", np.min, "minimum"),
    ("prod", np.prod, "mul"),
    ("absmax", lambda x, **how: np.max(np.abs(x), **how), "maximum"),
    ("abssum", lambda x, **how: np.sum(np.abs(x), **how), "add"),
):
    _reduction(_name, _function, _combine)


def _cumsum(x: Array, axis: int = -1, reverse: bool = False) -> Array:
    x = np.asarray(x)
    x = np.flip(x, axis) if reverse else x
    total = np.cumsum(x.astype(numpy_dtype(accumulator(dtype(x.dtype)))), axis=axis)
    return np.flip(total, axis) if reverse else total


def _softmax(x: Array, axis: int = -1) -> Array:
    x = _wide(x)
    with np.errstate(all="ignore"):
        powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return powers / np.sum(powers, axis=axis, keepdims=True)


def _same_shape(shape: Shape, **_: Any) -> Shape:
    return tuple(shape)


# --- matrices -------------------------------------------------------------------------------------


def _gemm(a: Array, b: Array, *old: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    """a @ b, accumulated in f32 (i32, f64), plus the old content where it accumulates."""
    wide = numpy_dtype(accumulator(dtype(np.asarray(a).dtype)))
    a, b = np.asarray(a).astype(wide, copy=False), np.asarray(b).astype(wide, copy=False)
    product = np.matmul(a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b)
    return product + old[0].astype(wide) if old else product


def _gemm_shape(a: Shape, b: Shape, *_: Shape, transpose_a: bool = False, transpose_b: bool = False) -> Shape:
    a, b = (s[-2:] if len(s) > 2 and set(s[:-2]) == {1} else s for s in (a, b))
    if len(a) != 2 or len(b) != 2:
        raise OperationError(f"gemm takes two matrices, not tiles of {len(a)} and {len(b)} dimensions")
    rows, inner = (a[1], a[0]) if transpose_a else (a[0], a[1])
    inner_b, columns = (b[1], b[0]) if transpose_b else (b[0], b[1])
    if inner != inner_b:
        raise OperationError(f"gemm: inner extents {inner} and {inner_b} differ")
    return (rows, columns)


def _gemm_flops(out: Shape, a: Shape, *_: Shape, transpose_a: bool = False, **__: Any) -> Any:
    return 2 * prod(out) * (a[-2] if transpose_a else a[-1])


# --- moving and making ----------------------------------------------------------------------------


def _pad(x: Array, **place: int) -> Array:
    """Return ``x`` at (at0, at1, ...) of a tile of extents (n0, n1, ...) that is zero elsewhere."""
    x, rank = np.asarray(x), len(place) // 2
    lead = x.ndim - rank
    full = np.zeros((*x.shape[:lead], *(place[f"n{d}"] for d in range(rank))), x.dtype)
    spans = tuple(slice(place[f"at{d}"], place[f"at{d}"] + x.shape[lead + d]) for d in range(rank))
    full[(slice(None),) * lead + spans] = x
    return full


def _library_kernel(x: Array, **kernel: Any) -> Array:
    """Refuse: a library's kernel in a Plan says how long it takes (``timing/library_commands.py``)."""
    name = kernel.get("name") or kernel.get("kernel")
    raise OperationError(f"'{name}' is a library's kernel, which has a time and computes no data")


register(
    (
        Operation(
            "cumsum", _cumsum, 1, "vector", _same_shape, lambda out, x, **_: prod(x),
            attributes=("axis", "reverse"),
        ),
        Operation(
            "softmax", _softmax, 1, "vector", _same_shape, lambda out, x, **_: 12 * prod(x),
            attributes=("axis",),
        ),
        *(
            Operation(
                name, _gemm, count, "tensor", _gemm_shape, _gemm_flops, accumulates=count == 3,
                attributes=("transpose_a", "transpose_b"),
            )
            for name, count in {"gemm": 2, "gemm_add": 3}.items()
        ),
        Operation("copy", lambda x: x, 1, "dma", _same_shape, lambda out, *_: 0),
        Operation(
            "library_kernel", _library_kernel, 1, "tensor", _same_shape, lambda out, *_, **__: 0,
            attributes=("kernel", "kv_dtype", "library", "message_ps", "name", "scheme", "shape"),
        ),
        Operation(
            "pad", _pad, 1, "dma", lambda x, **place: tuple(place[f"n{d}"] for d in range(len(place) // 2)),
            lambda out, *_, **__: 0,
            attributes=tuple(f"{word}{d}" for word in ("at", "n") for d in range(16)),
        ),
        Operation("cast", lambda x: x, 1, "vector", _same_shape, lambda out, *_: prod(out)),
        Operation(
            "transpose", lambda x: np.asarray(x).swapaxes(-1, -2), 1, "vector",
            lambda s: (*s[:-2], s[-1], s[-2]), lambda out, *_: prod(out),
        ),
        Operation(
            "fill", lambda value=0: np.asarray(value), 0, "vector", lambda value=0: (),
            lambda out, **_: prod(out), attributes=("value",),
        ),
        Operation(
            "iota", lambda length, start=0: np.arange(length) + np.asarray(start)[..., None], 0, "vector",
            lambda length, start=0: (length,), lambda out, **_: prod(out), attributes=("length", "start"),
        ),
    )
)  # fmt: skip


def spoken_operation(name: str) -> str:
    """Return what texts call an operation.

    >>> spoken_operation("nest"), spoken_operation("gemm")
    ('elementwise', 'gemm')
    """
    return "elementwise" if name == "nest" else name


def work_of(name: str, result: Shape, shapes: Sequence[Shape], attributes: dict[str, Any]) -> Any:
    """Return floating point operations of one application (an int, or an expression if an extent is one)."""
    operation = OPERATIONS[name]
    known = {k: v for k, v in attributes.items() if k in ("transpose_a", "axis")}
    return operation.flops(result, *shapes, **known)


REDUCTIONS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
