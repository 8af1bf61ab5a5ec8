"""Commands on blocks: computing, copying with edges, meeting; and which implementation does a statement: what
lowering asks the registry, and remembers to explain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, Place as Source
from megatile.core.expr import ONE, ZERO, Const, Expr, Symbol, bounds, constant, known, simplify, walk
from megatile.core.expr.typing import Load
from megatile.core.quantities import format_time
from megatile.cost.implementations import Request, choose
from megatile.hda import HDA
from megatile.ir.launch import ROOT, Launch
from megatile.lowering.banks import degree, sectors
from megatile.lowering.errors import LoweringError
from megatile.lowering.regions import Block, product
from megatile.lowering.storage import Home
from megatile.lowering.streams import StreamScope
from megatile.lowering.units import Place
from megatile.plan import model as pm


def compute(
    scope: StreamScope, operation: str, write: Block, reads: list[Block],
    attributes: dict[str, Any] | None = None, engine: str = "vector", flops: Expr = ZERO, dtype: str = "f32",
    fresh: bool = False, by: str = "", banked: Expr = ZERO,
) -> None:  # fmt: skip
    """``banked``: bytes through the banks of a memory where lanes take turns there, each turn counted.

    What is spread over other units is copied before it is computed on, and back after."""
    if engine != "dma" and scope.level is not scope.state.first:
        reads = [_fetched(scope, block) for block in reads]
        if write.home.spread and _sized(write):
            here = between_blocks(scope, write, "l0")
            compute(scope, operation, here, reads, attributes, engine, flops, dtype, fresh, by, banked)
            copy_block(scope, write, here)
            return
    size = bytes_moved(scope, reads[0] if reads else write, write) if engine == "dma" else banked
    given = tuple(sorted((attributes or {}).items()))
    scope.state.filled.pop(write.home.name, None)
    scope.emit(
        pm.Compute(
            operation, write.region(), tuple(r.region() for r in reads), given, engine,
            pm.Work(simplify(flops), size, dtype), fresh, by=by,
        )
    )  # fmt: skip


def _fetched(scope: StreamScope, block: Block) -> Block:
    """Return a block that is spread over other units in a tile of the stream's own."""
    return brought(scope, block) if block.home.spread and _sized(block) else block


def _sized(block: Block) -> bool:
    return not block.cut and all(known(axis.size) for axis in block.axes)


def bytes_moved(scope: StreamScope, source: Block, target: Block) -> Expr:
    """Return the bytes of a copy, with rows rounded up to the sectors of the memories on both sides."""
    factor, size = max((rounded(scope, block) for block in (source, target)), key=lambda one: one[0])
    width = itemsize(distant(scope, target, source).home.dtype)
    return size if factor > 1 else simplify(product(a.extent for a in source.axes) * width)


def distant(scope: StreamScope, *blocks: Block) -> Block:
    """Return the block of a copy that lies further from the unit: its elements travel in its type, and a copy
    that converts does so at the unit. Of blocks equally far, the one with the widest elements."""
    hda = scope.state.hda

    def distance(block: Block) -> tuple[bool, int, int]:
        home = block.home
        level = hda.level(hda.memory(home.memory).level).position
        return block.at is not None or home.spread, level, itemsize(home.dtype)

    return max(blocks, key=distance)


def rounded(scope: StreamScope, block: Block) -> tuple[float, Expr]:
    """Return how many times its bytes a block takes in whole sectors of its memory, and how many these are.
    Rows that follow each other without a gap are one."""
    layer, width = scope.state.hda.memory(block.home.memory), itemsize(block.home.dtype)
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
    factor = taken / (run * width)
    note_waste(scope, layer.name, run * width, factor)
    return factor, simplify(product(axis.extent for axis, _ in axes) * taken)


def copy_block(
    scope: StreamScope,
    target: Block,
    source: Block,
    forced: str | None = None,
    between: str | None = None,
) -> None:
    """Copy the elements of one block to another; what is outside is zero, or not written. ``between``: the
    scale of the two units, if it goes from one to another."""
    request = copy_request(scope, target, source, between)
    name = chosen(scope, request, forced)
    through = name == "lsu" and (request.far or not request.inside) and not request.in_registers
    if through and _in_registers(scope, source):
        middle = between_blocks(scope, source, "l0")
        _moved(scope, middle, source, name, copy_request(scope, middle, source), 2)
        _moved(scope, target, middle, name, copy_request(scope, target, middle), 2)
    elif source.cut and target.cut:
        middle = between_blocks(scope, source, "l0")
        copy_block(scope, middle, source)
        copy_block(scope, target, middle)
    else:
        _moved(scope, target, source, name, request)


def _moved(
    scope: StreamScope, target: Block, source: Block, name: str, request: Request, each: int = 1
) -> None:
    """Write one command of a copy: by the lanes between memories of the unit (``each`` operations on an
    element), or by a DMA engine."""
    near = not request.far and request.inside and scope.level is not scope.state.first
    fresh = target.home.name in scope.fresh
    scope.fresh.discard(target.home.name)
    engine, flops = ("vector", target.elements * each) if near else ("dma", ZERO)
    by = "" if near else _by(request, name)
    if source.cut:
        attributes: dict[str, Any] = {}
        for d, axis in enumerate(source.axes):
            attributes |= {f"at{d}": plain(axis.offset), f"n{d}": plain(axis.size)}
        compute(scope, "pad", target, [source], attributes, engine, flops, fresh=fresh, by=by)
    else:
        inner = source.inner(target) if target.cut else source
        banked = lane_turns(scope, (inner, target)) if near else ZERO
        compute(scope, "copy", target, [inner], None, engine, flops, target.home.dtype, fresh, by, banked)
    kept = tuple((source.axes[i].extent, source.axes[i].size) for i in source.kept_axes)
    if source.home.tensor and target.is_whole and len(kept) == len(target.axes):
        scope.state.filled[target.home.name] = scope.turns, kept


def lane_turns(scope: StreamScope, blocks: Sequence[Block]) -> Expr:
    """Return the bytes through banks of a copy by lanes; neighbouring lanes take neighbouring elements."""
    accesses = []
    for block in blocks:
        loops = [(f"d{d}", axis.extent) for d, axis in enumerate(block.axes) if axis.extent != ONE]
        index = [Symbol(f"d{d}") if axis.extent != ONE else ZERO for d, axis in enumerate(block.axes)]
        accesses.append((block.home, index, loops))
    return banked(scope, accesses, blocks[-1].elements)


Access = tuple[Home, Sequence[Expr], Sequence[tuple[str, Expr]]]
"""An element of a tile in each iteration of loops."""


def banked(scope: StreamScope, accesses: Iterable[Access], elements: Expr) -> Expr:
    """Return bytes through the banks of memories where lanes take turns there, each turn counted; else
    none."""
    total, most = 0, 1
    for home, index, loops in accesses:
        memory, width = scope.state.hda.memory(home.memory), itemsize(home.dtype)
        if memory.banks:
            turns = noted(scope, home, degree, memory, home.extents, index, width, loops)
            total, most = total + turns * max(width, memory.bank), max(most, turns)
    return simplify(elements * total) if most > 1 else ZERO


def scattered(
    scope: StreamScope, touched: Iterable[tuple[Block, Sequence[Expr]]], loops: Sequence[tuple[str, int]]
) -> int:
    """Return bytes that memories above the unit move for elementwise code, where these are not those of the
    regions: lanes that are neighbours take elements further apart than they need be, or data choose them;
    else 0."""
    lanes, whole, differs = scope.state.facts.lanes, dict[Block, int](), False
    turns = -(-math.prod(count for _, count in loops) // max(1, lanes))
    for block, index in touched if lanes and loops else ():
        home, memory = block.home, scope.state.hda.memory(block.home.memory)
        width, chosen_by_data = itemsize(home.dtype), any(isinstance(p, Load) for i in index for p in walk(i))
        sector = memory.sector or (width if chosen_by_data and home.tensor else 0)
        if not sector:
            continue
        sector = max(sector, width)
        found, least = sectors(sector, home.extents, index, width, loops, lanes)
        size = math.prod(known(axis.size) or 1 for axis in block.axes) * width
        if found > least or chosen_by_data:
            size, differs = turns * found * sector, True
        if found > least:
            note_waste(scope, memory.name, least * sector // found, found / least)
        whole[block] = max(whole.get(block, 0), size)
    return sum(whole.values()) if differs else 0


def note_waste(scope: StreamScope, memory: str, used: int, factor: float) -> None:
    """Keep the line whose rows use ``used`` bytes of what the memory moves for them."""
    if scope.node is not None and scope.node.span:
        scope.state.notes.waste[f"{scope.node.span.file}:{scope.node.span.line}"] = memory, used, factor


def noted(scope: StreamScope, home: Home, turns: Callable[..., int], *given: Any) -> int:
    """Return the turns that lanes take in the banks of a tile as it is laid out, unless a hint arranges it;
    the line where they take most is kept for the result."""
    facts = scope.state.facts
    found = 1 if home.name in facts.arranged else turns(*given, swizzled=home.name in facts.swizzled)
    if found > 1 and scope.node is not None and scope.node.span:
        line = f"{scope.node.span.file}:{scope.node.span.line}"
        if found > scope.state.notes.conflicts.get(line, ("", "", 1))[2]:
            scope.state.notes.conflicts[line] = (scope.state.hda.memory(home.memory).name, home.name, found)
    return found


def _by(request: Request, name: str) -> str:
    """Return the DMA engine of an implementation, where it is not the nearest one anyway."""
    found, nearest = request.mover(name), request.engine("dma")
    return found[0].name if found is not None and nearest is not None and found[0] != nearest[0] else ""


def _in_registers(scope: StreamScope, block: Block) -> bool:
    """Return whether there is room for a block in registers: an eighth of them; larger ones go in pieces,
    which are one command all the same."""
    sizes = [known(axis.size) for axis in block.axes]
    room = scope.state.hda.memory("l0").size // 8
    return None not in sizes and math.prod(s or 0 for s in sizes) * itemsize(block.home.dtype) <= room


def brought(scope: StreamScope, block: Block) -> Block:
    """Return a block in a tile of the stream's own if it lies in a memory above the unit: what it holds has
    to come from there before anybody knows it."""
    if scope.level is scope.state.first or not copy_request(scope, block, block).far:
        return block
    here = between_blocks(scope, block, "l0")
    copy_block(scope, here, block)
    return here


def between_blocks(scope: StreamScope, source: Block, level: str) -> Block:
    """Return a tile of the stream's own, through which a copy goes."""
    shape = tuple(known(a.size) or 0 for a in source.axes)
    home = scope.state.scratch(scope, shape, source.home.dtype, level=level)
    axes = (replace(a, start=ZERO, extent=a.size, offset=ZERO, cut=False) for a in source.axes)
    return Block(home, tuple(axes))


def plain(value: Expr) -> Any:
    return value.value if isinstance(value, Const) else value


def key_of(scope: StreamScope, axis: int | None, scale: str | None = None) -> Expr:
    """Return what the units of a meeting have in common: the unit around them, their line along ``axis`` and,
    where they meet as parts of units of a larger ``scale``, their place inside those."""
    (low, high), launch = scope.among(scale), scope.place.launch
    key = scope.place.rank(0, low)
    if axis is not None:
        me, _, stride = scope.line(axis, scale)
        key = simplify(
            key * launch.count(launch.at(high), launch.at(low)) + scope.place.rank(low, high) - me * stride
        )
    inside = scope.group[1]
    if high < inside:
        key = simplify(
            key * launch.count(launch.at(inside), launch.at(high)) + scope.place.rank(high, inside)
        )
    return key if scope.stream.meets is None else scope.stream.meets(key)


# --- which implementation does a statement --------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What does a statement, and what every implementation that could would take."""

    primitive: str
    name: str
    forced: bool
    prices: Mapping[str, int]
    source: Source | None

    def __str__(self) -> str:
        prices = ", ".join(f"{name} {format_time(price)}" for name, price in self.prices.items())
        return f"{'asked for' if self.forced else 'cheapest'}: {prices}" if prices else "no other"


def choice_of(request: Request, forced: str | None, place: Source | None) -> Choice:
    """Return what does what is asked for at a place of the source: the cheapest, or what is ``forced``."""
    try:
        name, found = choose(request, forced)
    except MegatileError as error:
        raise LoweringError(error.message, place=place, advice=error.advice) from None
    return Choice(request.primitive.lower(), name, forced is not None, found, place)


def chosen(scope: StreamScope, request: Request, forced: str | None) -> str:
    """Return the implementation of the statement that is being written, or of what is written for it."""
    decided = scope.node.choice if scope.node is not None else None
    if forced is not None and decided is not None and decided.name == forced:
        return forced
    choice = choice_of(request, forced, scope.node.place if scope.node is not None else None)
    key = (request.primitive, str(choice.source), choice.name, request.elements)
    scope.state.notes.choices.setdefault(key, choice)
    return choice.name


def count(scope: StreamScope, block: Block) -> int:
    """Return elements of a block; where they vary, the most."""
    size = simplify(block.elements)
    exact = known(size)
    if exact is not None:
        return int(exact)
    found = bounds(size, scope.ranges)
    return int(found[1]) if found is not None else 0


def copy_request(
    scope: StreamScope, target: Block, source: Block, between: str | None = None, paired: bool = False
) -> Request:
    """``between``: the scale whose units put or get, also where both are inside one instance."""
    state = scope.state
    away = next((block for block in (target, source) if block.at is not None), None)
    reach = between
    if away is not None and between is None:
        reach = state.launch.scales[max(away.home.depth, 1) - 1].name
    return Request(
        "Copy", state.hda, scope.level.scale, source.home.dtype, count(scope, target),
        width=itemsize(distant(scope, target, source).home.dtype),
        memories=(source.home.memory, target.home.memory), reach=reach, inside=away is None,
        row=math.gcd(_row(source), _row(target)), paired=paired,
        ahead=scope.looped or several_instances(state.launch, state.hda),
        spread=source.home.spread or target.home.spread,
    )  # fmt: skip


def several_instances(launch: Launch, hda: HDA) -> bool:
    """Return whether units hold several instances of a launch, so that one works while another waits."""
    above = 1 if launch.host == ROOT else hda.count(launch.host)
    return launch.count(launch.dispatch, launch.host) * above > hda.count(launch.dispatch)


def reach_of(scope: StreamScope, peer: Place) -> str:
    """Return the largest scale at which a peer is, or is in, another unit than this one."""
    launch, mine = scope.place.launch, scope.place.path
    apart = (
        s.name for s, a, b in zip(launch.scales, mine, peer.path, strict=False) if a != b and s.count > 1
    )
    return next(apart, launch.scales[scope.group[1] - 1].name)


def _row(block: Block) -> int:
    return common_row(block.home.dtype, [known(axis.size) for axis in block.axes], block.home.extents)


def common_row(dtype: str, sizes: Sequence[int | None], extents: Sequence[int]) -> int:
    """Return bytes that the rows of a block, and what lies between their beginnings, have in common; 0: they
    follow each other without a gap, or only the run tells."""
    width, found = itemsize(dtype), 0
    run = width
    for size, whole in reversed(list(zip(sizes, extents, strict=True))):
        if size is None or found:
            return found
        run *= size
        if size != whole:
            found = math.gcd(run, width * extents[-1])
    return found or run
