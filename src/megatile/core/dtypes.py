"""Element types: one short name each, whatever the user writes (``"float16"``, ``np.float16``,
``torch.float16``).

>>> dtype("float16"), itemsize("bf16"), is_float("f8e4m3")
('f16', 2, True)
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

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
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
NAMES: tuple[str, ...] = tuple(_NUMPY)

_SPELLINGS = {numpy_name: name for name, numpy_name in _NUMPY.items()} | {
    "fp64": "f64", "double": "f64", "fp32": "f32", "float": "f32", "fp16": "f16", "half": "f16",
    "f8": "f8e4m3", "fp8": "f8e4m3", "float8": "f8e4m3", "e4m3": "f8e4m3", "float8_e4m3": "f8e4m3",
    "e5m2": "f8e5m2", "int": "i32", "long": "i64", "short": "i16", "bool_": "bool",
}  # fmt: skip


def dtype(spelling: Any) -> str:
    """The short name of an element type given as a name, a NumPy type or dtype, or a torch dtype."""
    text = spelling if isinstance(spelling, str) else _text_of(spelling)
    text = text.removeprefix("torch.")
    if text in _NUMPY:
        return text
    if text in _SPELLINGS:
        return _SPELLINGS[text]
    raise DtypeError(f"dtype {text!r} is unknown", advice=did_you_mean(text, NAMES, what="dtypes"))


def _text_of(spelling: Any) -> str:
    if isinstance(spelling, np.dtype):
        return spelling.name
    if isinstance(spelling, type):
        return np.dtype(spelling).name
    return str(spelling)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype that stores elements of ``name`` (bf16 and f8 come from ml_dtypes)."""
    numpy_name = _NUMPY[dtype(name)]
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, numpy_name))
    return np.dtype(numpy_name)


@cache
def itemsize(name: str) -> int:
    """Bytes per element."""
    return numpy_dtype(name).itemsize


def is_float(name: str) -> bool:
    return dtype(name)[0] in "fb" and name != "bool"


def accumulator(name: str) -> str:
    """The type in which sums and products of ``name`` are accumulated.

    Floats narrower than f32 accumulate in f32, narrow integers in i32.
    """
    name = dtype(name)
    if is_float(name):
        return "f64" if name == "f64" else "f32"
    return "i64" if name == "i64" else "i32"
