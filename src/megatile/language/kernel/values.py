"""What a kernel holds while it is read: tiles, pointers into tensors, references to tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

from megatile.core.dtypes import dtype as dtype_name, itemsize
from megatile.core.expr import Expr, bounds, maximum, minimum, ne, symbols
from megatile.language.common.hooks import Undefined
from megatile.language.kernel.symbols import KernelError, Sym, SymRange, to_expr, wrap
from megatile.plan.build import Handle


class DataBranchError(KernelError):
    """A branch on the contents of a tile."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A kernel argument in memory: ``shape`` elements of ``dtype`` for each unit.

    As in one virtual range, unit ``r``'s part lies at ``pointer + r * nbytes``; ``replicated`` means that
    every unit has a whole copy at ``pointer`` itself. Where ``copies`` units in a row hold the same part, or
    the parts begin anew every ``period`` units, a unit means its own copy. ``role`` says whether the kernel
    reads it, writes it, or both; ``memory`` (None: as the reader says) where it lies.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "f16"
    role: str = "inout"
    memory: str | None = None
    replicated: bool = False
    copies: int = 1
    period: int = 0

    def owner(self, number: Any, me: Any) -> Any:
        """Return the unit whose copy of part ``number`` the unit ``me`` means."""
        if self.copies == 1 and not self.period:
            return number
        first = me // self.period * self.period if self.period else 0
        return first + number * self.copies + me % self.copies

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        object.__setattr__(self, "shape", tuple(int(s) for s in shape))
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    @property
    def nbytes(self) -> int:
        return itemsize(self.dtype) * prod(self.shape)


class Pointer:
    """A byte address inside a tensor; adding integers moves it."""

    __slots__ = ("offset", "reader", "tensor")

    def __init__(self, tensor: Any, offset: Any, reader: Any):
        self.tensor, self.offset, self.reader = tensor, offset, reader

    def __add__(self, other: Any) -> Pointer:
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return Pointer(self.tensor, self.offset + other, self.reader)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        if isinstance(other, Pointer) and other.tensor is self.tensor:
            return self.offset - other.offset
        if not isinstance(other, (int, Sym)):
            return NotImplemented
        return Pointer(self.tensor, self.offset - other, self.reader)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Pointer) or other.tensor is not self.tensor:
            return False
        return wrap(to_expr(self.offset), self.reader) == other.offset

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{self.tensor.name} + {self.offset!r}>"


@dataclass(frozen=True, eq=False)
class Computed:
    """A kernel argument that differs between units: ``make(tl)`` gives it when the kernel is read."""

    make: Callable[[Any], Any]


@dataclass(frozen=True)
class TensorHandle:
    """Memory at an address as a tile, made by the kernel itself: a source for ``tl.send`` and ``tl.store``.

    ``space`` is the memory it lies in; without one, that of tensors.
    """

    addr: Any
    shape: tuple[int, ...]
    dtype: str = "f16"
    space: str | None = None


@dataclass(frozen=True)
class Ref:
    """A tensor left where it is (``tl.ref``), for operations that stream it themselves."""

    pointer: Any
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class RecvFuture:
    """What ``recv_async`` gives and ``wait`` takes."""

    direction: Any
    shape: tuple[int, ...]
    dtype: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class TileRef:
    """A tile in a kernel. Arithmetic on it becomes commands; its contents are not known while reading."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    space: str
    tl: Any
    addr: Any = None

    @property
    def kind(self) -> tuple[tuple[int, ...], str]:
        return self.shape, self.dtype

    @property
    def nbytes(self) -> int:
        return itemsize(self.dtype) * prod(self.shape)

    def handle(self) -> Handle:
        return Handle(self.name, self.shape, self.dtype, self.space)

    def renamed(self, name: str) -> TileRef:
        return replace(self, name=name)

    def to(self, dtype: Any) -> Any:
        return self.tl.cast(self, dtype)

    def __bool__(self) -> NoReturn:
        raise DataBranchError(
            "a branch on data: the contents of a tile are not known while the kernel is read",
            place=self.tl.here,
            advice="n = tl.read_scalar(tile, bound=...) to branch on, or tl.where to choose by element",
        )

    def __getitem__(self, index: Any) -> NoReturn:
        raise KernelError(
            f"the elements of a tile ({self.dtype}{list(self.shape)}) cannot be taken one by one",
            place=self.tl.here,
            advice="tl.read_scalar(tile, index, bound=…) reads an integer; tl.load takes a part of a tensor",
        )

    __int__ = __index__ = __float__ = __iter__ = __len__ = __bool__

    def __repr__(self) -> str:
        return f"<tile {self.name} {self.dtype}{list(self.shape)} in {self.space}>"

    __str__ = __bool__

    def __neg__(self) -> Any:
        return self.tl.apply("neg", self)

    def __abs__(self) -> Any:
        return self.tl.apply("abs", self)

    def __matmul__(self, other: Any) -> Any:
        return self.tl.dot(self, other)


def _arithmetic(operation: str, reverse: bool = False) -> Callable[[TileRef, Any], Any]:
    def method(self: TileRef, other: Any) -> Any:
        if not isinstance(other, (int, float, Sym, TileRef)):
            return NotImplemented
        return self.tl.binary(operation, other, self) if reverse else self.tl.binary(operation, self, other)

    return method


for _word, _operation in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}.items():
    setattr(TileRef, f"__{_word}__", _arithmetic(_operation))
    setattr(TileRef, f"__r{_word}__", _arithmetic(_operation, reverse=True))
for _word in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(TileRef, f"__{_word}__", _arithmetic(_word))
setattr(TileRef, "__hash__", object.__hash__)  # noqa: B010 (comparisons make tiles, so tiles hash by identity)


def same_value(a: Any, b: Any) -> bool:
    """Return whether two values that a variable may have are the same to the kernel."""
    if a is b:
        return True
    if isinstance(a, (int, Sym)) and isinstance(b, (int, Sym)):
        return to_expr(a) == to_expr(b)
    if isinstance(a, TileRef) and isinstance(b, TileRef):
        return a.name == b.name and a.kind == b.kind
    if isinstance(a, Pointer) and isinstance(b, Pointer):
        return a.tensor is b.tensor and same_value(a.offset, b.offset)
    if isinstance(a, Undefined) or type(a) is not type(b):
        return isinstance(a, Undefined) and isinstance(b, Undefined)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, (str, float, bytes, type(None), RecvFuture)) and bool(a == b)


# --- Python functions that mean something else for symbols: ``int``, ``range``, ``min``, ``max``, ``abs``


def hashable(function: Any) -> bool:
    try:
        hash(function)
    except (TypeError, KernelError):
        return False
    return True


def symbolic_value(value: Any) -> bool:
    return isinstance(value, (Sym, Pointer, TileRef))


def is_truth(node: Expr) -> bool:
    limits = bounds(node, {})
    return limits is not None and limits[0] >= 0 and limits[1] <= 1


def depends_only_on(node: Expr, known: dict[str, tuple[int, int]]) -> bool:
    """Names bound inside a branch are no longer there after it."""
    return symbols(node) <= set(known)


def _int(reader: Any, value: Any) -> Any:
    return value


def _range(reader: Any, *arguments: Any) -> Any:
    start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
    return SymRange(start, stop, step, reader)


def _extreme(rule: Callable[[Any, Any], Expr], word: str) -> Callable[..., Any]:
    def function(reader: Any, *arguments: Any) -> Any:
        if any(isinstance(a, TileRef) for a in arguments):
            raise KernelError(f"use tl.{word} for tiles", place=reader.here)
        total = to_expr(arguments[0])
        for other in arguments[1:]:
            total = rule(total, to_expr(other))
        return wrap(total, reader)

    return function


BUILTINS: dict[Any, Callable[..., Any]] = {
    int: _int,
    range: _range,
    min: _extreme(minimum, "minimum"),
    max: _extreme(maximum, "maximum"),
    abs: lambda reader, x: wrap(maximum(x.expr, -x.expr), reader) if isinstance(x, Sym) else abs(x),
    bool: lambda reader, value: wrap(ne(value.expr, 0), reader) if isinstance(value, Sym) else bool(value),
    isinstance: lambda reader, value, kind: isinstance(0 if isinstance(value, Sym) else value, kind),
}
