"""Commands on blocks: computing, copying with edges, meeting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import ZERO, Const, Expr, constant, known, simplify
from megatile.lower.choice import chosen, copy_request
from megatile.lower.regions import Block, product
from megatile.lower.streams import Frame
from megatile.plan import model as pm


def compute(
    frame: Frame, operation: str, write: Block, reads: list[Block], attributes: dict[str, Any] | None = None,
    engine: str = "vector", flops: Expr = ZERO, dtype: str = "f32", fresh: bool = False,
) -> None:  # fmt: skip
    size = bytes_moved(frame, reads[0] if reads else write, write) if engine == "dma" else ZERO
    given = tuple(sorted((attributes or {}).items()))
    frame.emit(
        pm.Compute(
            operation, write.region(), tuple(r.region() for r in reads), given, engine,
            pm.Work(simplify(flops), size, dtype), fresh,
        )
    )  # fmt: skip


def bytes_moved(frame: Frame, source: Block, target: Block) -> Expr:
    """The bytes of a copy, with rows rounded up to the sectors of the memories on both sides."""
    found = [rounded(frame, block, itemsize(source.home.dtype)) for block in (source, target)]
    exact = simplify(product(a.extent for a in source.axes) * itemsize(source.home.dtype))
    factor, size = max(found, key=lambda one: one[0])
    return size if factor > 1 else exact


def rounded(frame: Frame, block: Block, width: int) -> tuple[float, Expr]:
    """How many times its bytes a block takes in whole sectors of its memory, and how many these are. Rows
    that follow each other without a gap are one."""
    layer = frame.lowering.hda.memory(block.home.memory)
    run, axes = 1, list(zip(block.axes, block.home.extents, strict=True))
    while layer.sector and axes:
        axis, whole = axes.pop()
        extent = constant(axis.extent)
        if extent is None or extent == 0:
            return 1.0, ZERO
        run *= int(extent)
        if extent != whole:
            break
    if not layer.sector or run * width % layer.sector == 0:
        return 1.0, ZERO
    taken = -(-run * width // layer.sector) * layer.sector
    factor, node = taken / (run * width), frame.node
    if node is not None and node.span:
        place = node.span.place()
        frame.lowering.waste[f"{place.file}:{place.line}"] = (layer.name, run * width, factor)
    return factor, simplify(product(axis.extent for axis, _ in axes) * taken)


def copy_block(
    frame: Frame, target: Block, source: Block, forced: str | None = None, between: bool = False
) -> None:
    """The elements of one block to another; what is outside is zero, or not written. ``between``: from one
    unit to another."""
    request = copy_request(frame, target, source, between)
    name = chosen(frame, request, forced)
    lanes = name == "lsu" and (request.far or not request.inside) and not request.in_registers
    if lanes or name == "software_channel" or (source.cut and target.cut):
        middle = between_blocks(frame, source, "l1" if name == "software_channel" else "l0")
        copy_block(frame, middle, source)
        copy_block(frame, target, middle)
        return
    fresh = target.home.name in frame.fresh
    frame.fresh.discard(target.home.name)
    bulk = request.far or not request.inside or frame.level is frame.lowering.first
    engine = "dma" if bulk else "vector"
    flops = target.elements if engine == "vector" else ZERO
    if source.cut:
        attributes: dict[str, Any] = {}
        for d, axis in enumerate(source.axes):
            attributes |= {f"at{d}": plain(axis.offset), f"n{d}": plain(axis.size)}
        compute(frame, "pad", target, [source], attributes, engine, flops, fresh=fresh)
        return
    if target.cut:
        source = source.inner(target)
    compute(frame, "copy", target, [source], None, engine, flops, target.home.dtype, fresh)


def between_blocks(frame: Frame, source: Block, level: str) -> Block:
    """A tile of the stream's own, through which a copy goes."""
    shape = tuple(known(a.size) or 0 for a in source.axes)
    home = frame.lowering.scratch(frame, shape, source.home.dtype, level=level)
    axes = (replace(a, start=ZERO, extent=a.size, offset=ZERO, cut=False) for a in source.axes)
    return Block(home, tuple(axes))


def plain(value: Expr) -> Any:
    return value.value if isinstance(value, Const) else value


def key_of(frame: Frame, axis: int | None) -> Expr:
    """What the units of a meeting have in common: the unit around them, and their line along ``axis``."""
    low, high = frame.group
    above = frame.place.rank(0, low)
    launch = frame.place.launch
    among = frame.stream.meets or (lambda key: key)
    if axis is None:
        return among(above)
    grid = launch.grid(launch.scales[high - 1].name, launch.scales[low - 1].name if low else "launch")
    rank, stride = frame.place.rank(low, high), math.prod(grid[:axis])
    first = rank - (rank // stride % grid[axis]) * stride
    return among(simplify(above * math.prod(grid) + first))
