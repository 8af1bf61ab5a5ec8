"""Element types: one short name each, whatever the user writes (``"float16"``, ``np.float16``,
``torch.float16``).

>>> dtype("float16"), itemsize("bf16"), is_float("f8e4m3")
('f16', 2, True)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.core.errors import MegatileError, did_you_mean


class DtypeError(MegatileError, ValueError):
    """An element type that does not exist, or that an operation cannot take."""


_NUMPY = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f4e2m1": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
    "tf32": "float32",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "i4": "int4",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "u4": "uint4",
    "bool": "bool",
}
"""The NumPy type that stores each; tf32 is f32 rounded to 10 bits, the others are what they say."""
NAMES: tuple[str, ...] = tuple(_NUMPY)

_BITS = {"f4e2m1": 4, "i4": 4, "u4": 4}
_SPELLINGS = {numpy_name: name for name, numpy_name in _NUMPY.items() if name != "tf32"} | {
    "fp64": "f64", "double": "f64", "fp32": "f32", "float": "f32", "fp16": "f16", "half": "f16",
    "f8": "f8e4m3", "fp8": "f8e4m3", "float8": "f8e4m3", "e4m3": "f8e4m3", "float8_e4m3": "f8e4m3",
    "e5m2": "f8e5m2", "float8_e8m0": "e8m0", "f4": "f4e2m1", "fp4": "f4e2m1", "float4_e2m1": "f4e2m1",
    "tfloat32": "tf32", "uint": "u32", "int": "i32", "long": "i64", "short": "i16", "bool_": "bool",
}  # fmt: skip


def dtype(spelling: Any) -> str:
    """Return the short name of an element type given as a name, a NumPy type or dtype, or a torch dtype."""
    text = spelling if isinstance(spelling, str) else _text_of(spelling)
    text = text.removeprefix("torch.")
    if text in _NUMPY:
        return str(text)
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    raise DtypeError(f"dtype {text!r} is unknown", advice=did_you_mean(text, NAMES, what="dtypes"))


def _text_of(spelling: Any) -> str:
    if isinstance(spelling, np.dtype):
        return spelling.name
    if isinstance(spelling, type):
        return np.dtype(spelling).name
    return str(spelling)


@cached()
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype that stores elements of ``name`` (those NumPy lacks come from ml_dtypes)."""
    numpy_name = _NUMPY[dtype(name)]
    if hasattr(np, numpy_name) or numpy_name == "bool":
        return np.dtype(numpy_name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, numpy_name))


@cached()
def itemsize(name: str) -> int:
    """Return bytes per element of an array; types of 4 bits take one each there, see ``bits``."""
    return numpy_dtype(name).itemsize


def bits(name: str) -> int:
    """Return bits per element in a machine's memory."""
    return _BITS.get(dtype(name)) or 8 * itemsize(name)


def is_float(name: str) -> bool:
    return (dtype(name)[0] in "fb" and name != "bool") or name in ("e8m0", "tf32")


def accumulator(name: str) -> str:
    """Return the type in which sums and products of ``name`` are accumulated.

    Floats narrower than f32 accumulate in f32, narrow integers in i32.
    """
    name = dtype(name)
    if is_float(name):
        return "f64" if name == "f64" else "f32"
    return {"u64": "u64", "i64": "i64", "u32": "i64"}.get(name, "i32")
