"""Element types as objects: ``T.float16`` is what ``"f16"`` is, and ``T.float16(x)`` converts."""

from __future__ import annotations

from typing import Any

from megatile.core.dtypes import dtype
from megatile.language.tile.functions import cast


class DType(str):
    """A name of an element type that can be called; equal to the name."""

    def __call__(self, value: Any) -> Any:
        return cast(value, str(self))


OBJECTS = {
    name: DType(dtype(name))
    for name in (
        "float64", "float32", "float16", "bfloat16", "tfloat32", "float8_e4m3", "float8_e4m3fn",
        "float8_e5m2", "float8_e8m0", "float8_e8m0fnu", "float4_e2m1", "float4_e2m1fn", "int64", "int32",
        "int16", "int8", "int4", "uint64", "uint32", "uint16", "uint8", "uint4", "bool",
    )
}  # fmt: skip
"""By the names ``T`` gives them."""
