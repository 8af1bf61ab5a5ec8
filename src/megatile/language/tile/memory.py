"""``T.alloc`` and ``T.view``: tiles, and how units see them."""

from __future__ import annotations

import inspect
import math
from typing import Any

from megatile.core import placement as lay
from megatile.core.arguments import no_none
from megatile.core.dtypes import dtype as dtype_name
from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Expr, applied, simplify
from megatile.ir import nodes as n
from megatile.ir.expr import Rank as RankExpr
from megatile.ir.printer import show_layout
from megatile.language.tile.builder import ProgramBuilder, current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.inference import ADVICE, LayoutFound, OpenView
from megatile.language.tile.scalars import Value, as_expr, as_value, plain
from megatile.language.tile.tiles import Symbol, Tile, argument

UNKNOWN = 1 << 62
"""Bound of a symbolic extent."""


def alloc(shape: Any, dtype: Any = "f32", level: str = "l0") -> Tile:
    """Allocate one tile per unit of the current scale in memory layer ``level``."""
    builder = current()
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    shape = tuple(plain(e) for e in shape)
    for extent in shape:
        if isinstance(extent, Value):
            raise ProgramError(
                f"T.alloc of shape {shape!r}: {extent!r} is known only when the program runs",
                advice="tiles have constant shapes; use the largest (x.bound for a view) and copy a part",
            )
        if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
            raise ProgramError(f"T.alloc of shape {shape!r}", advice="extents are whole numbers from 1")
    if builder.parallel:
        raise ProgramError("T.alloc inside T.Parallel", advice="allocate before the loop")
    return new_tile(shape, dtype_name(dtype), level)


def new_tile(shape: tuple[int, ...], dtype: str, level: str, flag: bool = False, kind: Any = Tile) -> Any:
    """Return a tile of a checked shape; those of a dispatched unit (and below) end with its region."""
    builder = current()
    layer = memory_layer(builder, level)
    builder.open_implied()
    tile = kind(builder, builder.fresh("tile"), shape, shape, dtype, builder.scale, layer, flag=flag)
    private = [one.number for one in builder.scales if builder.plan.is_private(one.scale)]
    if private:
        builder.homes[tile.name] = private[0]
    builder.emit(
        n.Alloc, name=tile.name, shape=shape, dtype=dtype, level=layer, scale=builder.scale, flag=flag
    )
    return tile


def memory_layer(builder: ProgramBuilder, level: str) -> str:
    """Return the machine's name of a memory layer; caches cannot be allocated in."""
    try:
        layer = builder.machine.memory(level)
    except MegatileError as error:
        raise ProgramError(error.message, advice=error.advice) from None
    if layer.cache:
        raise ProgramError(
            f"'{level}' is a cache: nothing can be allocated in it",
            advice='"l2" is device memory, "l1" shared memory',
        )
    return str(layer.name)


def alloc_shared(shape: Any, dtype: Any = "f32") -> Tile:
    """Allocate with ``T.alloc(..., level="l1")``."""
    return alloc(shape, dtype, "l1")


def alloc_fragment(shape: Any, dtype: Any = "f32") -> Tile:
    """Allocate with ``T.alloc(..., level="l0")``."""
    return alloc(shape, dtype, "l0")


alloc_local = alloc_fragment


def view(x: Any, layout: Any = None) -> Tile:
    """Return how a unit of the current scale sees ``x``; indices of a view are local, its ``shape`` this
    unit's."""
    builder = current()
    x = argument(x)
    if not isinstance(x, Tile):
        raise ProgramError("T.view needs a tensor, a tile or a view", advice="T.view(A, layout=T.FullRow)")
    builder.open_implied()
    builder.check_visible(x)
    scale = builder.scale
    key = (x.name, scale)
    placed = builder.placements.get(key) or builder.inferred.get(key)
    if layout is None:
        if placed is None and builder.argument is not None:
            raise ProgramError(f"T.view of '{x.name}' in a bare launch has no layout", advice=ADVICE)
        if placed is None:
            builder.open.setdefault(key, builder.place)
            return add_view(builder, x, lay.Replicate(), OpenView)
        resolved = placed
    else:
        resolved = _resolve(builder, x, layout, scale)
        if key in builder.open:
            raise LayoutFound(key, resolved)
    if placed is not None and placed != resolved:
        raise ProgramError(
            f"'{x.name}' is already placed as {show_layout(placed)} at scale '{scale}', not "
            f"{show_layout(resolved)}",
            advice="the first view fixes the placement; copy into another tile for a second one",
        )
    builder.placements[x.name, scale] = resolved
    return add_view(builder, x, resolved)


def add_view(builder: ProgramBuilder, x: Tile, layout: lay.Layout, kind: type[Tile] = Tile) -> Tile:
    scale = builder.scale
    shape, bound = _local_shape(builder, x, layout, builder.plan.grid(scale, x.scale))
    tile = kind(builder, builder.fresh(f"{x.name}_{scale}"), shape, bound, x.dtype, scale, x.level, x, layout)
    builder.emit(n.View, name=tile.name, source=x.name, layout=layout, scale=scale)
    return tile


def _resolve(builder: ProgramBuilder, x: Tile, layout: Any, scale: str) -> lay.Layout:
    extents = builder.plan.grid(scale, x.scale)
    if layout is lay.Replicate or layout is lay.Partial:
        layout = layout()
    if isinstance(layout, (tuple, list)):
        axes = tuple(lay.Replicate() if a is lay.Replicate else a for a in layout)
        if len(axes) != len(extents) or not all(isinstance(a, (lay.Shard, lay.Replicate)) for a in axes):
            raise ProgramError(
                f"layout={layout!r}: scale '{scale}' has {len(extents)} dimensions",
                advice="give T.Shard(d) or T.Replica for each of them",
            )
        layout = lay.Mesh(axes)
    if isinstance(layout, (lay.Shard, lay.Replicate, lay.Partial, lay.Mesh)):
        return _checked(x, layout, extents)
    if callable(layout):
        return _owner(layout, tuple(int(e) for e in x.bound), extents)
    raise ProgramError(
        f"layout={layout!r} is not a layout",
        advice="T.FullRow, T.FullCol, T.Shard(d), T.Replica, T.Partial(op) or a function",
    )


def _owner(function: Any, shape: tuple[int, ...], extents: tuple[int, ...]) -> lay.Layout:
    try:
        inspect.signature(function).bind(*shape)
    except TypeError:
        raise ProgramError(
            f"the owner function does not take {len(shape)} indices",
            advice=f"one for each dimension: lambda {', '.join('ijklmn'[: len(shape)])}: ...",
        ) from None
    try:
        return lay.from_function(function, shape, extents)
    except MegatileError as error:
        raise ProgramError(error.message, advice=error.advice) from None
    except Exception as error:
        raise ProgramError(
            f"the owner function fails: {type(error).__name__}: {error}",
            advice=f"it is called while building, with every index of {shape}, and returns a rank",
        ) from None


def _checked(x: Tile, layout: lay.Layout, extents: tuple[int, ...]) -> lay.Layout:
    shards = [layout] if isinstance(layout, lay.Shard) else list(getattr(layout, "axes", ()))
    for shard in shards:
        if isinstance(shard, lay.Shard) and not 0 <= shard.dim < x.ndim:
            raise ProgramError(
                f"T.Shard({shard.dim}) of '{x.name}', which has {x.ndim} dimensions",
                advice="dimensions count from 0",
            )
        if isinstance(shard, lay.Shard) and shard.axis is not None and not 0 <= shard.axis < len(extents):
            raise ProgramError(
                f"T.Shard(axis={shard.axis}): the scale has {len(extents)} dimensions",
                advice="launch the scale with a tuple of extents",
            )
    if isinstance(layout, lay.Partial) and layout.op not in ("sum", "max", "min"):
        raise ProgramError(f"T.Partial('{layout.op}')", advice="sum, max or min")
    ordered = [s for s in shards if isinstance(s, lay.Shard) and s.order != "contiguous"]
    if not ordered:
        return layout
    if ordered[0].order not in lay.ORDERS or layout is not ordered[0] or UNKNOWN in x.bound:
        raise ProgramError(
            f"T.Shard(order={ordered[0].order!r}) of '{x.name}'",
            advice=f"one of {', '.join(lay.ORDERS)}, for a tile of known shape and all units of the scale",
        )
    return lay.written_out(ordered[0], tuple(int(e) for e in x.bound), extents)


def _local_shape(
    builder: ProgramBuilder, x: Tile, layout: lay.Layout, extents: tuple[int, ...]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    if any(isinstance(e, Value) for e in x.shape) or UNKNOWN in x.bound:
        return _symbolic_shape(x, layout, extents)
    units = math.prod(extents)

    def lengths_of(rank: int) -> tuple[int, ...]:
        return tuple(lay.share_length(s) for s in lay.part(layout, x.bound, extents, rank))

    if not isinstance(layout, lay.Owner) and lengths_of(0) == lengths_of(units - 1):
        return lengths_of(0), lengths_of(0)  # runs: the first is the longest, the last the shortest
    columns = list(zip(*(lengths_of(rank) for rank in range(units)), strict=True))
    rank = RankExpr(builder.scale, x.scale)
    shape = (c[0] if len(set(c)) == 1 else as_value(_lookup(rank, list(c))) for c in columns)
    return tuple(shape), tuple(map(max, columns))


def _lookup(rank: Expr, values: list[int]) -> Expr:
    """Return the value for a rank, as few comparisons as runs of equal values need."""
    result: Expr = Const(values[-1])
    for at in range(len(values) - 1, 0, -1):
        if values[at - 1] != values[at]:
            below = applied("<", (rank, Const(at)), "bool")
            result = applied("select", (below, Const(values[at - 1]), result))
    return result


def _symbolic_shape(
    x: Tile, layout: lay.Layout, extents: tuple[int, ...]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return shapes with names in them: equal shares, rounded up."""
    shape = list(x.shape)
    if isinstance(layout, lay.Shard):
        size = simplify(applied("ceildiv", (as_expr(shape[layout.dim]), Const(math.prod(extents)))))
        shape[layout.dim] = as_value(size)
    return tuple(shape), tuple(UNKNOWN if isinstance(e, Value) else e for e in shape)


@no_none
def dynamic(name: str) -> Symbol:
    """Return a symbolic extent, bound when the program is run with arrays."""
    if not name.isidentifier():
        raise ProgramError(f"T.dynamic({name!r})", advice="give a name, e.g. T.dynamic('M')")
    return Symbol(name)
