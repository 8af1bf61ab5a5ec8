"""Handles of tensors, tiles and views, and regions of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from megatile.core.dtypes import dtype as dtype_name
from megatile.core.expr import Const, Expr, Symbol as SymbolExpr, ceil_div, difference, known, simplify
from megatile.core.placement import Layout
from megatile.core.quantities import whole
from megatile.hda import Instance
from megatile.ir.expr import Load
from megatile.ir.nodes import Dim, Region, Store
from megatile.ir.printer import show_region
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import Value, as_expr, as_value

if TYPE_CHECKING:
    from megatile.language.tile.builder import ProgramBuilder

ACTIVE: ContextVar[ProgramBuilder | None] = ContextVar("megatile_program_builder", default=None)
"""The Program being built here; ``builder.current`` is how the words of the language ask for it."""


class Symbol(Value):
    """A symbolic extent, from ``T.dynamic("M")``."""

    __slots__ = ("name",)

    def __init__(self, name: str):
        super().__init__(SymbolExpr(name))
        self.name = name

    @property
    def expr(self) -> Expr:
        """Return its number in the Program being built, or its name."""
        builder = ACTIVE.get()
        value = builder.bound.get(self.name) if builder is not None else None
        return self._expr if value is None else Const(value)


@dataclass(frozen=True)
class Tensor:
    """Annotation of a kernel's argument: ``A: T.Tensor((M, K), "f16")``."""

    shape: tuple[Any, ...]
    dtype: str = "f32"
    is_input: bool = False
    symmetric: bool = False

    def __post_init__(self) -> None:
        shape = tuple(self.shape) if isinstance(self.shape, (tuple, list)) else (self.shape,)
        for extent in shape:
            if not isinstance(extent, Value) and whole(extent) is None:
                raise ProgramError(
                    f"{extent!r} is not an extent of a tensor", advice='write T.Tensor((4, 8), "f32")'
                )
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype_name(self.dtype))

    def __getitem__(self, index: Any) -> Any:
        return self._argument()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._argument()[index] = value

    def _argument(self) -> Any:
        found = argument(self)
        if found is self:
            raise ProgramError(
                "a T.Tensor describes an argument, and has elements only inside a kernel that takes it",
                advice='write it in the head of the kernel: def kernel(A: T.Tensor((4, 8), "f32"))',
            )
        return found


def argument(value: Any) -> Any:
    """Return the argument of a ``T.Tensor`` in a bare ``with instance:``; other values unchanged."""
    instance = Instance.current() if ACTIVE.get() is None else None
    if instance is not None:
        instance.recording()
    builder = ACTIVE.get()
    if not isinstance(value, Tensor) or builder is None or builder.argument is None:
        return value
    return builder.argument(value)


@dataclass(frozen=True)
class InputArray:
    """An array that the caller wants to keep as it is."""

    array: Any


def Input(what: Any, dtype: Any = "f32") -> Any:
    """Declare an argument that is only read: ``A: T.Input((M, K), "f16")`` in a kernel's head, where a write
    is refused while building, or ``mt.run(kernel, T.Input(a), b)`` for an array."""
    return InputArray(what) if hasattr(what, "dtype") else Tensor(what, dtype, is_input=True)


@dataclass(eq=False)
class Tile:
    """A tensor argument, an allocated tile, or a view of either, as units of ``scale`` see it.

    ``bound`` is the largest shape any unit has (equal to ``shape`` unless shards are uneven).
    """

    builder: ProgramBuilder
    name: str
    shape: tuple[Any, ...]
    bound: tuple[int, ...]
    dtype: str
    scale: str
    level: str
    base: Tile | None = None
    layout: Layout | None = None
    flag: bool = False
    padded: ClassVar[bool] = False
    """Whether slices may reach over the edge: zero is read there, and nothing is written."""

    def __post_init__(self) -> None:
        self.builder.tiles[self.name] = self

    @property
    def storage(self) -> Tile:
        """The tensor or tile that holds the elements."""
        return self if self.base is None else self.base.storage

    @property
    def global_shape(self) -> tuple[Any, ...]:
        return self.storage.shape

    @property
    def is_view(self) -> bool:
        return self.base is not None

    @property
    def is_tensor(self) -> bool:
        return self.storage.level == "tensor"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Ref:
        items = index if isinstance(index, tuple) else (index,)
        steps = tuple(_step(self, item) for item in items)
        if all(step == 1 for step in steps):
            return Ref(self, _dims(self, index))
        if any(item is Ellipsis for item in items):
            raise ProgramError(f"'{self.name}[...]' with a step", advice="write ':' for every dimension")
        dims = _dims(self, tuple(slice(i.start, i.stop) if isinstance(i, slice) else i for i in items))
        steps += (1,) * (len(dims) - len(steps))
        counts = (
            d.extent if d.extent is None else ceil_div(d.extent, n) for d, n in zip(dims, steps, strict=True)
        )
        return StridedRef(self, tuple(Dim(d.start, n) for d, n in zip(dims, counts, strict=True)), steps)

    def __setitem__(self, index: Any, value: Any) -> None:
        ref = self[index]
        if isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element):
            raise ProgramError(
                f"a region cannot be assigned to '{self.name}[...]'",
                advice=f"write T.copy({self.name}[...], ...), destination first",
            )
        if not ref.is_element:
            raise ProgramError(
                f"'{self.name}[...]' is a region, and one value is assigned to it",
                advice=f"write T.fill({self.name}[...], value), or loop over it with T.Parallel",
            )
        self.builder.store(Store, target=self.name, index=ref.index, value=as_expr(value))

    def __len__(self) -> int:
        return self.bound[0]

    def __iter__(self) -> Iterator[Any]:
        raise ProgramError(
            f"'{self.name}' cannot be looped over", advice="loop over indices: T.Parallel or T.serial"
        )

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"

    def _refuse(self, *_: Any) -> Any:
        as_expr(self)

    def __matmul__(self, other: Any) -> Any:
        raise ProgramError(
            f"'{self.name}' @ ... of whole tiles",
            advice=f"write T.gemm({self.name}, B, C): C += {self.name} @ B",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __mod__ = __pow__ = __neg__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse


class Ref(Value):
    """``A[i, j]`` or ``A[i:i+n, :]``: an element where a number is needed, otherwise a region."""

    __slots__ = ("dims", "tile")

    def __init__(self, tile: Tile, dims: tuple[Dim, ...]):
        self.tile = tile
        self.dims = dims

    @property
    def is_element(self) -> bool:
        return all(d.extent is None for d in self.dims)

    @property
    def index(self) -> tuple[Expr, ...]:
        return tuple(d.start for d in self.dims)

    @property
    def expr(self) -> Expr:
        if not self.is_element:
            raise ProgramError(
                f"a region of '{self.tile.name}' is used where a single number is needed",
                advice="index every dimension, inside for i in T.Parallel(...)",
            )
        self.tile.builder.check_visible(self.tile)
        return Load(self.tile.name, self.index, self.tile.dtype)

    def __repr__(self) -> str:
        return show_region(Region(self.tile.name, self.dims))


class StridedRef(Ref):
    """``A[i:j:2]``: every second element of a region; ``T.copy`` takes it."""

    __slots__ = ("steps",)

    def __init__(self, tile: Tile, dims: tuple[Dim, ...], steps: tuple[int, ...]):
        super().__init__(tile, dims)
        self.steps = steps


@dataclass(eq=False)
class OwnCopy:
    """This device's copy of a symmetric argument."""

    builder: ProgramBuilder
    tile: Tile
    part: Tile | None = None

    @property
    def name(self) -> str:
        return self.tile.name

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.tile.shape[1:]

    @property
    def dtype(self) -> str:
        return self.tile.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def mine(self) -> Tile:
        if self.part is None:
            raise ProgramError(
                f"'{self.name}' is symmetric, and the launch has not begun",
                advice="use it under 'with T.Kernel(device=...):'",
            )
        return self.part

    def _index(self, index: Any) -> tuple[Any, ...]:
        return (0, *(index if isinstance(index, tuple) else (index,)))

    def __getitem__(self, index: Any) -> Ref:
        return self.mine()[self._index(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.mine()[self._index(index)] = value

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}] on every device"


def _dims(tile: Tile, index: Any) -> tuple[Dim, ...]:
    items = index if isinstance(index, tuple) else (index,)
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items = (*items[:at], *(slice(None),) * (tile.ndim - len(items) + 1), *items[at + 1 :])
    if len(items) > tile.ndim:
        raise ProgramError(
            f"'{tile.name}' has {tile.ndim} dimensions, but {len(items)} indices are given",
            advice=f"its shape is {shape_text(tile.shape)}",
        )
    items = (*items, *(slice(None),) * (tile.ndim - len(items)))
    return tuple(_dim(tile, d, item) for d, item in enumerate(items))


def _dim(tile: Tile, d: int, item: Any) -> Dim:
    if not isinstance(item, slice):
        start = _from_the_end(tile, d, simplify(as_expr(item)))
        if start.dtype == "float" or start.dtype.startswith(("f", "bf")):
            raise ProgramError(
                f"index {d} of '{tile.name}' is {start.dtype}", advice="indices are whole numbers: // not /"
            )
        number, free = known(start), tile.padded and tile.level == "tensor"
        if number is not None and not free and not 0 <= number < max(tile.bound[d], 1):
            raise ProgramError(
                f"index {number} is out of bounds: dimension {d} of '{tile.name}' has {tile.bound[d]} "
                "elements",
                advice="indices count from 0, the last is shape[d] - 1 or -1",
            )
        return Dim(start)
    start = _from_the_end(tile, d, simplify(as_expr(0 if item.start is None else item.start)))
    stop = _from_the_end(tile, d, simplify(as_expr(tile.shape[d] if item.stop is None else item.stop)))
    extent = difference(stop, start)
    length = known(extent)
    if length is not None and length < 0:
        raise ProgramError(
            f"the slice of dimension {d} of '{tile.name}' has length {length}", advice="write x[low:high]"
        )
    if tile.padded:
        return Dim(start, extent, True)
    low, limit = known(start), tile.bound[d]
    beyond = low is not None and length is not None and low + length > limit and not tile.storage.is_tensor
    if low is not None and (low < 0 or beyond):  # over the edge of a tensor are zeros
        end = "" if length is None else str(low + length)
        raise ProgramError(
            f"'{tile.name}[{low}:{end}]' is out of bounds: dimension {d} has {limit} elements",
            advice="an anchor (an index instead of a slice) may reach over the edge",
        )
    return Dim(start, extent)


def _step(tile: Tile, item: Any) -> int:
    step = 1 if not isinstance(item, slice) or item.step is None else whole(item.step)
    if step is None or step < 1:
        raise ProgramError(
            f"'{tile.name}' is sliced with step {item.step}", advice="steps are whole numbers from 1"
        )
    return step


def _from_the_end(tile: Tile, d: int, at: Expr) -> Expr:
    """Return where an index lies that may count from the end, as -1 does."""
    number = known(at)
    return (
        simplify(as_expr(tile.shape[d]) + at) if number is not None and -tile.bound[d] <= number < 0 else at
    )


def shape_text(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(str(as_value(as_expr(n))) for n in shape)})"


def whole_dims(tile: Tile) -> tuple[Dim, ...]:
    return tuple(Dim(Const(0), as_expr(n)) for n in tile.shape)
