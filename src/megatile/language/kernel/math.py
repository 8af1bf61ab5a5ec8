"""Arithmetic on tiles in ``tl`` kernels: each function becomes one command."""

from __future__ import annotations

from typing import Any

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.errors import MegatileError
from megatile.core.operations import OPERATIONS
from megatile.language.kernel.symbols import Sym
from megatile.language.kernel.values import TileRef


class Math:
    """The arithmetic part of ``tl``; ``emit`` and ``error`` come from the subclass."""

    reader: Any

    def emit(self, operation: str, reads: Any, shape: Any, dtype: str, **options: Any) -> TileRef:
        """A command whose result is a new tile."""
        raise KeyError(operation)

    def error(self, message: str, advice: str | None = None) -> MegatileError:
        """An error at the line being read."""
        return MegatileError(message, advice=advice)

    def apply(self, operation: str, *operands: Any, dtype: Any = None, **attributes: Any) -> TileRef:
        """A tile operation; numbers among the operands become tiles of one element."""
        tiles = [o for o in operands if isinstance(o, TileRef)]
        if not tiles:
            raise self.error(f"{operation} needs at least one tile")
        element = tiles[0].dtype
        reads = [o if isinstance(o, TileRef) else self.scalar(o, element) for o in operands]
        try:
            shape = OPERATIONS[operation].shape(*(r.shape for r in reads), **attributes)
        except MegatileError as error:
            raise self.error(error.message, error.advice) from error
        return self.emit(
            operation, reads, tuple(shape), dtype_name(dtype) if dtype else element, **attributes
        )

    def scalar(self, value: Any, dtype: str) -> TileRef:
        if isinstance(value, Sym):
            return self.emit("fill", [], (1,), dtype, stem="scalar", value=value.expr)
        if not isinstance(value, (int, float)):
            raise self.error(f"{value!r} is neither a tile nor a number")
        return self.emit("fill", [], (1,), dtype, stem="scalar", value=value)

    def unary(self, operation: str, x: Any) -> TileRef:
        return self.apply(operation, x)

    def binary(self, operation: str, a: Any, b: Any) -> TileRef:
        result = "bool" if operation in ("lt", "le", "gt", "ge", "eq", "ne") else None
        return self.apply(operation, a, b, dtype=result)

    def maximum(self, a: Any, b: Any) -> TileRef:
        return self.apply("maximum", a, b)

    def minimum(self, a: Any, b: Any) -> TileRef:
        return self.apply("minimum", a, b)

    def fma(self, a: Any, b: Any, c: Any) -> TileRef:
        return self.apply("fma", a, b, c)

    def clamp(self, x: Any, min: Any, max: Any) -> TileRef:
        return self.apply("clamp", x, min, max)

    def where(self, condition: TileRef, a: Any, b: Any) -> TileRef:
        element = next((v.dtype for v in (a, b) if isinstance(v, TileRef)), None)
        return self.apply("where", condition, *self._like(element, a, b), dtype=element)

    def _like(self, element: str | None, *values: Any) -> list[Any]:
        if element is None:
            raise self.error("tl.where needs a tile to choose from")
        return [v if isinstance(v, TileRef) else self.scalar(v, element) for v in values]

    def exp(self, x: Any) -> TileRef:
        return self.apply("exp", x)

    def exp2(self, x: Any) -> TileRef:
        return self.apply("exp2", x)

    def log(self, x: Any) -> TileRef:
        return self.apply("log", x)

    def log2(self, x: Any) -> TileRef:
        return self.apply("log2", x)

    def sqrt(self, x: Any) -> TileRef:
        return self.apply("sqrt", x)

    def rsqrt(self, x: Any) -> TileRef:
        return self.apply("rsqrt", x)

    def abs(self, x: Any) -> TileRef:
        return self.apply("abs", x)

    def sigmoid(self, x: Any) -> TileRef:
        return self.apply("sigmoid", x)

    def tanh(self, x: Any) -> TileRef:
        return self.apply("tanh", x)

    def erf(self, x: Any) -> TileRef:
        return self.apply("erf", x)

    def cos(self, x: Any) -> TileRef:
        return self.apply("cos", x)

    def sin(self, x: Any) -> TileRef:
        return self.apply("sin", x)

    def floor(self, x: Any) -> TileRef:
        return self.apply("floor", x)

    def softmax(self, x: Any, axis: int = -1) -> TileRef:
        return self.apply("softmax", x, axis=axis)

    def sum(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("sum", x, axis=axis, keepdims=keepdims)

    def max(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("max", x, axis=axis, keepdims=keepdims)

    def min(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("min", x, axis=axis, keepdims=keepdims)

    def dot(self, a: Any, b: Any, *, out_dtype: Any = None) -> TileRef:
        """Matrix product, accumulated in f32, rounded to the type of ``a`` or ``out_dtype``."""
        return self.apply("gemm", a, b, dtype=out_dtype)

    def cast(self, x: Any, dtype: Any) -> TileRef:
        return self.apply("cast", x, dtype=dtype)

    def trans(self, x: Any) -> TileRef:
        return self.apply("transpose", x)

    def zeros(self, shape: Any, dtype: Any = "f32") -> TileRef:
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = "f32") -> TileRef:
        extents = tuple(int(s) for s in (shape if isinstance(shape, (tuple, list)) else (shape,)))
        number = value.expr if isinstance(value, Sym) else value
        return self.emit("fill", [], extents, dtype_name(dtype), stem="full", value=number)

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return -(-a // b)
