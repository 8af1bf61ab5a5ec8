"""Tensors, tiles and variables in TileLang's spelling: ``T.Tensor``, ``T.alloc_*``, ``T.empty``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any

from megatile.compat.tilelang.dtypes import dtype as Dtype, overflows, saturated
from megatile.compat.tilelang.functions import max_value
from megatile.compat.tilelang.vectors import Vector, elements, store
from megatile.core.dtypes import is_float, itemsize
from megatile.core.expr import Symbol as Var, expr as integer, rebuild, simplify
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.nodes import Dim
from megatile.language.tile.builder import ProgramBuilder, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.functions import if_then_else
from megatile.language.tile.memory import memory_layer, new_tile
from megatile.language.tile.operations import copy as copy_into
from megatile.language.tile.scalars import Value, as_expr, as_value, operate
from megatile.language.tile.tiles import ACTIVE, Ref, Symbol, Tile


@dataclass(frozen=True)
class TensorType:
    """What ``T.Tensor((M, K), T.float16)`` says of an argument."""

    shape: tuple[Any, ...]
    dtype: Dtype
    strides: tuple[Any, ...] | None = None


class TensorProxy:
    """``T.Tensor(shape, dtype)`` and ``T.Tensor[shape, dtype]``."""

    def __call__(self, shape: Any = (), dtype: Any = "float32", strides: Any = None, **_: Any) -> Any:
        if isinstance(strides, Buffer):  # ``T.Tensor(shape, dtype, other.data)``
            return view(strides, shape, dtype)
        return TensorType(extents_of(shape), Dtype(dtype), strides)

    def __getitem__(self, items: Any) -> TensorType:
        pair = isinstance(items, tuple) and len(items) == 2 and isinstance(items[0], (tuple, list))
        if pair or (isinstance(items, tuple) and len(items) == 2 and isinstance(items[1], (str, type))):
            return self(*items)
        return self(items)


class StridedTensorProxy(TensorProxy):
    """``T.StridedTensor(shape, strides, dtype)``: elements are found by index, wherever they lie."""

    def __call__(self, shape: Any = (), *rest: Any, **keywords: Any) -> TensorType:
        strides, dtype = (*rest, None, None)[:2]
        strides = keywords.get("strides", strides)
        return super().__call__(
            shape, keywords.get("dtype", dtype or "float32"), None if strides is None else extents_of(strides)
        )

    def __getitem__(self, items: Any) -> TensorType:
        return self(*items)


def extents_of(shape: Any) -> tuple[Any, ...]:
    return tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)


def resolved(value: Any, bound: dict[str, int]) -> Any:
    """A number where the symbolic extents in it are known, otherwise the value itself."""
    if not isinstance(value, Value):
        return value
    return as_value(substituted(value.expr, bound))


def substituted(expr: Any, bound: dict[str, int]) -> Any:
    def known_number(node: Any) -> Any:
        return integer(bound[node.name]) if isinstance(node, Var) and node.name in bound else node

    return simplify(rebuild(expr, known_number))


class Buffer(Tile):
    """A tile in TileLang's spelling: regions may be assigned to it."""

    padded = True
    safe: Any = None
    """What is read over the edge, if ``T.annotate_safe_value`` says so; otherwise zero."""

    def __getitem__(self, index: Any) -> Any:
        ramp = elements(self, index)
        if ramp is not None:
            return Vector(tuple(self[place] for place in ramp))
        ref = super().__getitem__(index)
        return ref if self.safe is None or not ref.is_element else SafeRef(ref.tile, ref.dims)

    def __setitem__(self, index: Any, value: Any) -> None:
        ref = self[index]
        if isinstance(ref, Vector):
            lanes = value.lanes if isinstance(value, Vector) else (value,) * len(ref.lanes)
            for place, lane in zip(ref.lanes, lanes, strict=True):
                self[tuple(map(Value, place.index))] = lane
            return
        if isinstance(value, Vector):
            store(ref, value)
            return
        if isinstance(value, Tile) or (isinstance(value, Ref) and not value.is_element):
            copy_into(ref, value)
            return
        if isinstance(value, Value):
            value = saturated(value, self.dtype) if overflows(self.dtype, value.expr.dtype) else value
        if not ref.is_element:
            current().emit(n.Fill, to=n.Region(self.name, ref.dims), value=as_expr(value))
        else:
            current().store(n.Store, target=self.name, index=ref.index, value=as_expr(value))

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def data(self) -> Buffer:
        """The memory, to be read with another shape: ``T.Tensor(shape, dtype, x.data)``."""
        return self

    def scope(self) -> str:
        """TileLang's name of the memory that holds the tile."""
        if self.level == "tensor":
            return "global"
        return "shared.dyn" if self.level == memory_layer(self.builder, "l1") else "local.fragment"

    @property
    def strides(self) -> tuple[Any, ...]:
        steps, step = [], 1
        for extent in reversed(self.shape):
            steps.append(step)
            step = step * extent
        return tuple(reversed(steps))


class SafeRef(Ref):
    """An element of a tensor with a value for what lies over its edge."""

    @property
    def expr(self) -> Any:
        return as_expr(
            if_then_else(inside(self.tile, self.index), Value(super().expr), safe_value(self.tile))
        )


def safe_value(tile: Tile) -> Any:
    """What is read over the edge of a tensor if it is not zero, otherwise None."""
    return tile.safe if isinstance(tile, Buffer) else None


def inside(tile: Tile, index: Any) -> Any:
    """Whether an index lies in a tile or tensor."""
    places = [(Value(at), extent) for at, extent in zip(index, tile.shape, strict=True)]
    bounds = [test for at, extent in places for test in (at >= 0, at < extent)]
    return reduce(partial(operate, "and"), bounds)


def annotate_safe_value(values: dict[Any, Any]) -> None:
    """Say what is read over the edges of tensors, zero otherwise: ``T.annotate_safe_value({A: -1.0})``."""
    for tensor, value in values.items():
        if not isinstance(tensor, Buffer) or tensor.level != "tensor":
            raise ProgramError(
                f"T.annotate_safe_value of {tensor!r}", advice="give tensors in global memory: {A: value}"
            )
        tensor.safe = value


class Variable(Ref):
    """``x = T.alloc_var(T.int32)``: assigning to the name stores, reading it loads."""

    def __init__(self, tile: Tile):
        super().__init__(tile, (Dim(integer(0)),))

    def __getitem__(self, index: Any) -> Ref:
        return self.tile[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tile[index] = value

    def store(self, value: Any) -> None:
        self.tile[0] = value


@dataclass
class Barrier:
    """mbarriers: how many arrivals end a phase of each, over one flag tile."""

    tile: Buffer
    counts: tuple[int, ...]

    def __getitem__(self, index: Any) -> BarrierElement:
        return BarrierElement(self, index)


@dataclass
class BarrierElement:
    barrier: Barrier
    index: Any


@dataclass
class KernelState:
    """What TileLang's spelling needs to remember beside the Program being built."""

    function: Any = None
    shapes: list[Any] | None = None
    """Where arrays' shapes are noted while extents are looked for; nothing is built then."""
    tensors: dict[str, Buffer] = field(default_factory=dict)
    local: list[Buffer] = field(default_factory=list)
    """Tiles that every thread has for itself where the kernel names threads."""
    cpu: bool = False
    """Whether the kernel is compiled for a CPU, where a block has one thread unless it says otherwise."""
    threads: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()
    coords: tuple[Value, ...] = ()
    cluster: tuple[int, ...] = ()
    """Blocks of a cluster along each dimension of the grid."""
    ranks: int = 1
    """Devices that run the kernel together."""
    ordering: set[str] = field(default_factory=set)
    """Variables of signals and waits, which a thread does for its role."""
    programs: list[Any] = field(default_factory=list)
    arrivals: dict[str, int] = field(default_factory=dict)
    """Arrivals that end a phase of a barrier, by its flag tile."""
    barriers: list[Barrier] = field(default_factory=list)
    reducers: list[Any] = field(default_factory=list)
    reduction: str = "sum"
    """How ``T.tvm_thread_allreduce`` combines."""
    levels: set[Any] = field(default_factory=set)
    """Levels of ``T.Scale`` that were left."""
    assumed: bool = False
    home: str = "block"
    registers: str = "registers"

    @property
    def private(self) -> set[str]:
        return {tile.name for tile in self.local}

    def renamed(self, tensor: Buffer, name: str) -> None:
        """A tensor that the program makes gets the name of the variable it is assigned to."""
        builder = tensor.builder
        del self.tensors[tensor.name], builder.tiles[tensor.name]
        tensor.name = name
        self.tensors[name] = builder.tiles[name] = tensor


def state() -> KernelState:
    """The state beside ``current()``."""
    found = getattr(current(), "tilelang", None)
    if found is None:
        raise ProgramError(
            "a kernel of the tile language T uses TileLang's names",
            advice="write megatile.tilelang.language as T in the whole kernel, or use megatile.language",
        )
    return found


def declare(builder: ProgramBuilder, name: str, shape: Any, dtype: Any, strides: Any = None) -> Buffer:
    """A tensor in global memory under a name of its own."""
    extents = tuple(resolved(e, builder.bound) for e in extents_of(shape))
    if builder.tilelang.shapes is not None:  # type: ignore[attr-defined]
        extents = tuple(1 if isinstance(e, Value) else e for e in extents)
    for extent in extents:
        if isinstance(extent, Value):
            raise ProgramError(
                f"the shape of '{name}' has the unknown extent {extent!r}",
                advice="give it by name: .compile(M=1024), or call with arrays whose shapes show it",
            )
    extents = tuple(int(e) for e in extents)
    name = builder.fresh(name)
    buffer = Buffer(builder, name, extents, extents, Dtype(dtype).short, ROOT, "tensor")
    builder.tilelang.tensors[name] = buffer  # type: ignore[attr-defined]
    return buffer


def empty(*shape: Any, dtype: Any = "float32") -> Buffer:
    """A tensor that the program makes; returned ones are its results."""
    if len(shape) == 2 and isinstance(shape[0], (tuple, list)):
        shape, dtype = tuple(shape[0]), shape[1]
    elif len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    return declare(current(), "made", shape, dtype)


def alloc_global(shape: Any, dtype: Any = "float32", scope: str = "global") -> Buffer:
    """A workspace in global memory."""
    return empty(extents_of(shape), dtype)


def allocate(shape: Any, dtype: Any, level: str, private: bool = False, flag: bool = False) -> Buffer:
    builder = current()
    extents = tuple(resolved(e, builder.bound) for e in extents_of(shape))
    for extent in extents:
        if isinstance(extent, Value) or int(extent) < 1:
            raise ProgramError(
                f"a tile of shape {extents!r}",
                advice="extents of tiles are whole numbers from 1, known while building",
            )
    buffer: Buffer = new_tile(tuple(int(e) for e in extents), Dtype(dtype).short, level, flag, Buffer)
    if private:
        state().local.append(buffer)
    return buffer


def view(src: Any, shape: Any = None, dtype: Any = None) -> Buffer:
    """The elements of a tile or tensor with another shape or dtype."""
    builder = current()
    extents = src.shape if shape is None else extents_of(shape)
    extents = tuple(int(resolved(e, builder.bound)) for e in extents)
    element = src.dtype if dtype is None else Dtype(dtype).short
    wanted, there = math.prod(extents) * itemsize(element), math.prod(src.shape) * itemsize(src.dtype)
    if wanted != there:
        raise ProgramError(
            f"'{src.name}' {src.dtype}{list(src.shape)} cannot be read as {element}{list(extents)}: it takes"
            f" {there} bytes here, and not {wanted}",
            advice="give a shape of as many bytes; an element of 4 bits takes one in a tile",
        )
    builder.open_implied()
    name = builder.fresh(f"{src.name}_as")
    alias = Buffer(builder, name, extents, extents, element, src.scale, src.level)
    if src.name in builder.homes:
        builder.homes[name] = builder.homes[src.name]
    builder.emit(n.Reshape, name=name, source=src.name, shape=extents, dtype=element)
    return alias


def reshape(src: Any, shape: Any) -> Buffer:
    """The elements of a tile or tensor with another shape."""
    return view(src, shape)


def alloc_shared(shape: Any, dtype: Any = "float32", scope: str = "shared.dyn") -> Buffer:
    """A tile in shared memory."""
    return allocate(shape, dtype, "l1")


def alloc_buffer(shape: Any, dtype: Any = "float32", scope: str = "shared.dyn", **_: Any) -> Buffer:
    """A tile in the memory that ``scope`` names; before the launch, in global memory."""
    if scope == "global" or current().launch is None:
        return alloc_global(shape, dtype)
    return allocate(shape, dtype, "l1" if scope.startswith("shared") else "l0", private=scope == "local")


def alloc_fragment(shape: Any, dtype: Any = "float32", scope: str = "local.fragment") -> Buffer:
    """A tile in registers, spread over the threads of the block."""
    return allocate(shape, dtype, "l0", private=scope == "local")


def alloc_local(shape: Any, dtype: Any = "float32", scope: str = "local") -> Buffer:
    """A tile in the registers of each thread."""
    return allocate(shape, dtype, "l0", private=True)


def alloc_tmem(shape: Any, dtype: Any = "float32") -> Buffer:
    """A tile in tensor memory, which machines without it keep in registers."""
    return allocate(shape, dtype, "l0")


def alloc_var(dtype: Any, *args: Any, scope: str = "local.var", init: Any = None) -> Any:
    """A number that changes: ``x = T.alloc_var(T.int32); x = x + 1``."""
    for value in args:
        if not isinstance(value, str):
            init = value
    _check_initial(init, Dtype(dtype))
    if current().parallel:  # a number of each iteration, which assignments to its name replace
        return Dtype(dtype)(0 if init is None else init)
    variable = Variable(allocate((1,), dtype, "l0", private=True))
    variable.store(0 if init is None else init)
    return variable


class InitialError(ProgramError, ValueError):
    """A first value that a variable cannot hold."""


def _check_initial(init: Any, kind: Dtype) -> None:
    if not isinstance(init, float) or not is_float(kind.short) or not math.isfinite(init):
        return
    greatest = max_value(kind)
    if abs(init) > greatest:
        raise InitialError(
            f"T.alloc_var: init={init} exceeds maximum of {kind} ({greatest:.6g})", advice="a wider dtype"
        )


def alloc_barrier(arrive_count: Any) -> Barrier:
    """mbarriers, one for each count."""
    counts = tuple(arrive_count) if isinstance(arrive_count, (list, tuple)) else (arrive_count,)
    tile = allocate((len(counts),), "int32", "l1", flag=True)
    barrier = Barrier(tile, tuple(int(c) for c in counts))
    state().barriers.append(barrier)
    return barrier


def symbols(names: str, dtype: Any = "int32") -> Any:
    """``M, N = T.const("M, N")``: extents known when the kernel is called or compiled."""
    bound = getattr(ACTIVE.get(), "bound", {})
    found = tuple(bound.get(name, Symbol(name)) for name in names.replace(",", " ").split())
    return found[0] if len(found) == 1 else found
