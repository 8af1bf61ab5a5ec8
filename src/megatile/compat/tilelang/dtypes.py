"""TileLang's element types: ``T.float16`` is a name, a cast and a description in one.

>>> float16.bits, float16 == "f16", str(float16)
(16, True, 'float16')
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import numpy as np

from megatile.core.dtypes import DtypeError, dtype as short_name, is_float, itemsize
from megatile.language.tile.functions import cast, if_then_else
from megatile.language.tile.scalars import Value

_BITS = {
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float4_e2m1_unpacked": 4,
    "uint1": 1,
    "int2": 2,
    "uint2": 2,
}
_ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "int": "int32", "uint": "uint32",
    "long": "int64", "short": "int16", "tfloat32": "float32", "float8_e4m3": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fn", "float8_e5m2fnuz": "float8_e5m2", "boolean": "bool",
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "i8": "int8", "i16": "int16",
    "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu", "i4": "int4",
    "u4": "uint4", "f4e2m1": "float4_e2m1fn", "float4_e2m1": "float4_e2m1fn",
    "float4_e2m1fn_x2": "float4_e2m1fn",
}  # fmt: skip

_PACKED = {"float4_e2m1fn": "float4_e2m1fn_x2", "int4": "int8", "uint4": "uint8"}


_VECTOR = re.compile(r"(\w+)x(\d+)")


def _long_name(spelling: Any) -> str:
    """TileLang's own name of an element type, from any spelling of it."""
    if isinstance(spelling, str):
        text = str.__str__(spelling)
    elif isinstance(spelling, type):
        text = {int: "int32", float: "float32", bool: "bool"}.get(spelling) or np.dtype(spelling).name
    else:
        text = str(getattr(spelling, "name", spelling))
    text = text.removeprefix("torch.")
    return _ALIASES.get(text, text)


class dtype(str):
    """An element type; equal to every spelling of itself, and a cast when called."""

    def __new__(cls, spelling: Any) -> dtype:
        return super().__new__(cls, _long_name(spelling))

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, str) and str.__eq__(_plain(self), _long_name(other))) or _same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_plain(self))

    def __call__(self, value: Any = 0, *more: Any) -> Any:
        if self.lanes == 1:
            return saturated(value, self.short)
        from megatile.compat.tilelang.vectors import Vector

        values = (value, *more) if more else (value,) * self.lanes
        if len(values) != self.lanes:
            raise DtypeError(f"{self} of {len(values)} numbers", advice=f"give {self.lanes}, or one")
        return Vector(tuple(saturated(one, self.element.short) for one in values))

    @property
    def short(self) -> str:
        """The name in megatile's Programs."""
        return short_name(_plain(self))

    @property
    def bits(self) -> int:
        if self.lanes > 1:
            return self.lanes * self.element.bits
        return _BITS.get(_plain(self)) or 8 * itemsize(self.short)

    @property
    def lanes(self) -> int:
        """Numbers of a vector type: 4 of float32x4."""
        found = _VECTOR.fullmatch(_plain(self))
        return builtins.int(found[2]) if found else 1

    @property
    def element(self) -> dtype:
        found = _VECTOR.fullmatch(_plain(self))
        return dtype(found[1]) if found else self

    @property
    def bytes(self) -> int:
        return (self.bits + 7) // 8

    itemsize = bytes

    def as_torch(self) -> Any:
        """The torch dtype of the same name; of four bits, the one that holds two in a byte."""
        import torch

        if self.lanes > 1:
            raise DtypeError(f"{self} has no torch dtype", advice=f"{self.element}.as_torch()")
        return getattr(torch, _PACKED.get(_plain(self), _plain(self)))

    torch = as_torch


def _plain(text: str) -> str:
    return str.__str__(text)


def _same(one: dtype, other: object) -> bool:
    if isinstance(other, str) or not hasattr(other, "itemsize"):
        return False
    try:
        return short_name(other) == one.short
    except DtypeError:
        return False


NAMES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e4m3 float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu float4_e2m1fn tfloat32 int64 int32 int16 int8 int4 uint64 uint32 uint16 uint8 half float "
    "double int uint long short bool"
).split()

LANES = (2, 4, 8, 16, 32, 64)
"""Lanes of TileLang's vector types."""
VECTORS = [
    f"{name}x{lanes}"
    for name in NAMES
    for lanes in LANES
    if name.startswith(("int", "uint", "float", "bfloat", "tfloat"))
    and name[-1].isalnum()
    and name not in ("int", "uint", "float")
]
globals().update({name: dtype(name) for name in NAMES})


_GREATEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
FP8 = tuple(_GREATEST)


def overflows(to: str, source: str) -> bool:
    """Whether a float of one dtype may be greater than every finite number of an fp8 one."""
    return to in _GREATEST and source != to and is_float(source)


def saturated(value: Any, short: str) -> Any:
    """``value`` as another dtype; casts to fp8 stop at the greatest finite number, as CUDA's do."""
    if isinstance(value, Value) and overflows(short, value.expr.dtype):
        most = _GREATEST[short]
        value = if_then_else(value > most, most, if_then_else(value < -most, -most, value))
    return cast(value, short)
