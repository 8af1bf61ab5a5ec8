"""Words of ``tl`` that mean the same while a kernel is read and while it runs: arithmetic on tiles (one
command per function), and arguments of receives and sends."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from megatile.core.dtypes import dtype as dtype_name, itemsize
from megatile.core.errors import MegatileError
from megatile.core.operations import OPERATIONS
from megatile.language.kernel.symbols import KernelError, Sym
from megatile.language.kernel.values import RecvFuture, Ref, TensorHandle, TileRef


def _unary(operation: str) -> Callable[[Math, Any], TileRef]:
    def function(self: Math, x: Any) -> TileRef:
        return self.apply(operation, x)

    function.__name__, function.__qualname__ = operation, f"tl.{operation}"
    return function


class Math:
    """The part of ``tl`` that is the same for all; what is only declared comes from the subclass."""

    reader: Any
    here: Any
    emit: Callable[..., TileRef]
    """A command whose result is a new tile."""
    at_address: Callable[[TensorHandle], TileRef]
    put: Callable[[Any, TileRef], None]
    direction: Callable[[Any], Any]
    recv: Callable[..., TileRef]

    def error(self, message: str, advice: str | None = None) -> KernelError:
        """Return an error at the line being read."""
        return KernelError(message, place=self.here, advice=advice)

    @staticmethod
    def extents(shape: Any) -> tuple[int, ...]:
        return tuple(int(s) for s in (shape if isinstance(shape, (tuple, list)) else (shape,)))

    @staticmethod
    def static_range(*bounds: int) -> tuple[int, ...]:
        """Return a range that is always unrolled."""
        return tuple(range(*bounds))

    def apply(self, operation: str, *operands: Any, dtype: Any = None, **attributes: Any) -> TileRef:
        """Return a tile operation; numbers among the operands become tiles of one element."""
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
        if not isinstance(value, (int, float, Sym)):
            raise self.error(f"{value!r} is neither a tile nor a number")
        return self._filled((1,), value, dtype, "scalar")

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

    exp, exp2, log, log2, sqrt, rsqrt, abs, sigmoid, tanh, erf, cos, sin, floor = map(
        _unary, ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "abs", "sigmoid", "tanh", "erf", "cos",
                 "sin", "floor")
    )  # fmt: skip

    def softmax(self, x: Any, axis: int = -1) -> TileRef:
        return self.apply("softmax", x, axis=axis)

    def sum(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("sum", x, axis=axis, keepdims=keepdims)

    def max(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("max", x, axis=axis, keepdims=keepdims)

    def min(self, x: Any, axis: int = -1, keepdims: bool = False) -> TileRef:
        return self.apply("min", x, axis=axis, keepdims=keepdims)

    def dot(self, a: Any, b: Any, *, out_dtype: Any = None) -> TileRef:
        """Return the matrix product, accumulated in f32, rounded to the type of ``a`` or ``out_dtype``."""
        return self.apply("gemm", a, b, dtype=out_dtype)

    def cast(self, x: Any, dtype: Any) -> TileRef:
        return self.apply("cast", x, dtype=dtype)

    def trans(self, x: Any) -> TileRef:
        return self.apply("transpose", x)

    def zeros(self, shape: Any, dtype: Any = "f32") -> TileRef:
        return self.full(shape, 0, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = "f32") -> TileRef:
        return self._filled(self.extents(shape), value, dtype_name(dtype), "full")

    def _filled(self, extents: tuple[int, ...], value: Any, dtype: str, stem: str) -> TileRef:
        number = value.expr if isinstance(value, Sym) else value
        return self.emit("fill", [], extents, dtype, stem=stem, value=number)

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return -(-a // b)

    # --- memory and messages ---------------------------------------------------------------------

    def ref(self, ptr: Any, shape: Any, dtype: Any = "f16") -> Ref:
        """Return memory as an operand of ``composite``; nothing is loaded yet."""
        return Ref(ptr, self.extents(shape), dtype_name(dtype))

    def load(self, ptr: Any, shape: Any, dtype: Any = "f16") -> TileRef:
        """Copy from memory into a new tile."""
        return self.at_address(TensorHandle(ptr, shape, dtype))

    def store(self, ptr: Any, handle: TileRef | TensorHandle) -> None:
        """Copy a tile to memory."""
        tile = self.at_address(handle) if isinstance(handle, TensorHandle) else handle
        if not isinstance(tile, TileRef):
            raise self.error(f"tl.store takes a tile, not {handle!r}")
        self.put(ptr, tile)

    def recv_async(self, dir: Any = None, shape: Any = (), dtype: Any = "f16", **options: Any) -> RecvFuture:
        """Start a receive that is completed by ``wait``."""
        if dir is not None:
            self.direction(dir)
        return RecvFuture(dir, self.extents(shape), dtype_name(dtype), tuple(sorted(options.items())))

    def wait(self, future: RecvFuture) -> TileRef:
        if not isinstance(future, RecvFuture):
            raise self.error("tl.wait takes what tl.recv_async gave")
        return self.recv(future.direction, future.shape, future.dtype, **dict(future.options))

    def sent(
        self, src: Any, src_addr: Any, nbytes: int | None, shape: Any, dtype: Any, space: str
    ) -> TileRef | TensorHandle:
        """Return the tile of a message, or the memory at an address."""
        if isinstance(src, (TileRef, TensorHandle)):
            return src
        if src is not None:
            raise self.error(f"tl.send takes a tile, not {src!r}")
        element = dtype_name(dtype)
        extents = self.extents(shape if shape is not None else (nbytes or 0) // itemsize(element))
        if nbytes is not None and nbytes != prod(extents) * itemsize(element):
            raise self.error(f"{nbytes} bytes are not {element}{list(extents)}")
        return TensorHandle(src_addr, extents, element, space)
