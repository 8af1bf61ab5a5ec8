"""What each kind of statement becomes in a stream: one rule per kind."""

from __future__ import annotations

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import (
    ZERO,
    Const,
    Expr,
    Symbol,
    bounds,
    eq,
    minimum,
    select,
    simplify,
    unit,
)
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.lowering import elementwise
from megatile.lowering.banks import fetch_turns
from megatile.lowering.collectives import between_units
from megatile.lowering.commands import (
    between_blocks,
    brought,
    compute,
    copy_block,
    key_of,
    noted,
    plain,
    reach_of,
)
from megatile.lowering.elementwise import read_number
from megatile.lowering.errors import cannot
from megatile.lowering.loops import branch, loop_frame
from megatile.lowering.messages import by_messages
from megatile.lowering.regions import Block
from megatile.lowering.streams import StreamScope, rule
from megatile.lowering.units import WHOLE
from megatile.plan import model as pm

GROUPS = 1 << 20
"""More groups than a barrier has."""

# --- control --------------------------------------------------------------------------------------


@rule(n.View, n.Reshape, n.Print, n.Check, n.Breakpoint, n.Hint, n.Fence)
def _nothing(frame: StreamScope, node: n.Node) -> None:
    """Resolved (or refused) where it is used, or no part of the result. A signal or meeting waits for puts by
    itself."""


@rule(n.Loop)
def _loop(frame: StreamScope, node: n.Loop) -> None:
    with loop_frame(frame, node) as inner:
        inner.lower(node.body)


@rule(n.If)
def _if(frame: StreamScope, node: n.If) -> None:
    condition = frame.static(node.condition)
    if condition is None:  # it depends on data
        condition = read_number(frame, node.condition, 1, "condition")
    branch([frame], node, condition, lambda frames, body: frames[0].lower(body))


rule(n.Parallel, n.Store)(elementwise.statement)
rule(n.AtomicRegion)(elementwise.atomic_region)
rule(n.Collective)(between_units)


# --- variables and memory -------------------------------------------------------------------------


@rule(n.Alloc)
def _alloc(frame: StreamScope, node: n.Alloc) -> None:
    draft = frame.draft
    if node.name not in draft.homes.found:
        draft.declared.home(draft.homes.tile(node, frame.level.depth), frame.level)


@rule(n.Let)
def _let(frame: StreamScope, node: n.Let) -> None:
    value = frame.static(node.value) if node.value.dtype in WHOLE and node.name not in frame.values else None
    if value is None:
        elementwise.let(frame, node)
        return
    frame.names[node.name] = value
    found = bounds(simplify(value), frame.ranges)
    if found is not None and isinstance(value, Symbol):
        frame.ranges[node.name] = found


@rule(n.ReadScalar)
def _read_scalar(frame: StreamScope, node: n.ReadScalar) -> None:
    bound = node.bound if node.bound is not None else 2**31 - 1
    value = frame.static(node.value)
    if isinstance(node.value, Load) and all(frame.static(i) is not None for i in node.value.index):
        block = frame.regions.block(n.Region(node.value.source, tuple(n.Dim(i) for i in node.value.index)))
        value = frame.read(frame.draft.declared.name(node.name), brought(frame, block).region(), bound)
    elif value is None or not bound:  # reading more than 0 stops the run
        value = read_number(frame, node.value, bound, node.name)
    frame.names[node.name] = value


# --- data movement and arithmetic -----------------------------------------------------------------


@rule(n.Copy)
def _copy(frame: StreamScope, node: n.Copy) -> None:
    regions = frame.regions
    there, peer = frame.peer_of(node, node.src), frame.peer_of(node, node.dst)
    reaches = peer is not None or there is not None
    if reaches and node.impl == "software_channel" and by_messages(frame, node):
        return
    source = regions.block(node.source, peer=there)
    between = reach_of(frame, peer or there or frame.place) if reaches else None
    for target in regions.blocks(node.to, True, peer):
        copy_block(frame, target, source, node.impl, between)


@rule(n.Gemm)
def _gemm(frame: StreamScope, node: n.Gemm) -> None:
    regions = frame.regions
    a, b = regions.block(node.a), regions.block(node.b)
    read_c = regions.block(node.c)
    if a.cut or b.cut or read_c.cut:
        raise cannot("a product of regions over the edge of a tensor", node)
    rows = [a.axes[i].extent for i in a.kept][-2:]
    inner = rows[0] if node.transpose_a else rows[1]
    attributes = {k: True for k in ("transpose_a", "transpose_b") if getattr(node, k)}
    engine = node.impl or "vector"
    for c in regions.blocks(node.c, True):
        reads = [a, b] if node.clear else [a, b, read_c]
        name = "gemm" if node.clear else "gemm_add"
        banked = fetched(frame, (a, b)) if engine == "tensor" else ZERO
        flops = work_inside(frame, node, (a, b), engine)
        flops = c.elements * inner * 2 if flops is None else flops
        compute(frame, name, c, reads, attributes, engine, flops, a.home.dtype, banked=banked)


def work_inside(frame: StreamScope, node: n.Gemm, operands: tuple[Block, Block], engine: str) -> Expr | None:
    """The operations of a product in a loop that fills both tiles from tensors, where the engine stops at
    their edges; None where it does all of the tiles."""
    steps = next((e.clips for e in frame.draft.hda.engines if e.kind == engine), None)
    filled = [frame.draft.filled.get(b.home.name, ((), ())) for b in operands if b.is_whole]
    if steps is None or not frame.turns or [turns for turns, _ in filled] != [frame.turns] * 2:
        return None
    (_, left), (_, right) = filled
    rows, inner = left[::-1] if node.transpose_a else left
    depth, columns = right[::-1] if node.transpose_b else right
    whole = [
        minimum((inside + step - 1) // step * step, size)
        for (inside, size), step in zip((rows, columns), steps, strict=True)
    ]
    return whole[0] * whole[1] * minimum(inner[0], depth[0]) * 2


def fetched(frame: StreamScope, operands: tuple[Block, ...]) -> Expr:
    """Bytes of a product's operands through their banks, where rows that the engine reads at once meet."""
    engines = [e for e in frame.draft.hda.engines if e.kind == "tensor" and e.fetch]
    total, most = ZERO, 1
    for block in operands if engines else ():
        home, memory = block.home, frame.draft.hda.memory(block.home.memory)
        width, fetch = itemsize(home.dtype), engines[0].fetch or (1, 1)
        if memory.banks:
            turns = noted(frame, home, fetch_turns, memory, home.extents, width, fetch)
            total, most = total + block.elements * width * turns, max(most, turns)
    return simplify(total) if most > 1 else ZERO


@rule(n.Fill)
def _fill(frame: StreamScope, node: n.Fill) -> None:
    found = node.value if isinstance(node.value, Const) else frame.static(node.value)
    if found is None:
        elementwise.fill(frame, node)
        return
    value = plain(found)
    for target in frame.regions.blocks(node.to, True):
        compute(frame, "fill", target, [], {"value": value}, flops=target.elements, dtype=target.home.dtype)


@rule(n.Reduce)
def _reduce(frame: StreamScope, node: n.Reduce) -> None:
    regions = frame.regions
    source, old = regions.block(node.source), regions.block(node.to)
    if source.cut:
        raise cannot("a reduction of a region over the edge of a tensor", node)
    if node.impl == "shared":
        middle = between_blocks(frame, source, "l1")
        copy_block(frame, middle, source)
        source = middle
    for target in regions.blocks(node.to, True):
        reads, name = ([source], node.op) if node.clear else ([source, old], f"{node.op}_onto")
        attributes = {"axis": source.kept[node.dim]}
        compute(frame, name, target, reads, attributes, flops=source.elements, dtype=source.home.dtype)


@rule(n.Cumsum)
def _cumsum(frame: StreamScope, node: n.Cumsum) -> None:
    source = frame.regions.block(node.source)
    attributes = {"axis": source.kept[node.dim]} | ({"reverse": True} if node.reverse else {})
    for target in frame.regions.blocks(node.to, True):
        compute(frame, "cumsum", target, [source], attributes, flops=source.elements, dtype=source.home.dtype)


@rule(n.Atomic)
def _atomic(frame: StreamScope, node: n.Atomic) -> None:
    """An atomic; the old value, if it is asked for, is a number of the stream."""
    if node.result is None:
        elementwise.statement(frame, node)
        return
    peer = frame.peer_of(node, node.dst)
    block = frame.regions.block(n.Region(node.target, tuple(n.Dim(i) for i in node.index)), True, peer)
    swaps = node.op in ("cas", "exchange")
    if block.home.dtype not in WHOLE or (swaps and block.home.depth < frame.level.depth):
        # Units that wait for each other's locks would turn in a loop for ever: the first never lets go.
        raise cannot(f"an atomic_{node.op} of {block.home.dtype} that several units may share", node)
    name = frame.draft.declared.name(node.result)
    frame.names[node.result] = frame.read(
        name, block.region(), 2**31 - 1, write=block.region(), combine=node.op,
        expected=ZERO if node.expected is None else frame.whole(node.expected), value=frame.whole(node.value),
    )  # fmt: skip


# --- between units --------------------------------------------------------------------------------


@rule(n.Barrier)
def _barrier(frame: StreamScope, node: n.Barrier) -> None:
    if frame.line(None, node.scale)[1] == 1:
        return
    if not frame.meets(node.scale):
        raise cannot("a barrier here", node)
    key = key_of(frame, node.axis, node.scale)
    if node.group is not None:
        key = select(key < 0, key, key * GROUPS + frame.whole(node.group))
    if isinstance(node.units, int):
        _check_count(frame, node, key, node.units)
    elif node.units is not None:
        me, _, _ = frame.line(node.axis, node.scale)
        among: Expr = ZERO
        for number in node.units:
            among = among | eq(me, number)
        key = select(among, key, -1)
    frame.emit(pm.Collective("barrier", frame.draft.declared.barrier(frame.level, key, node.name)))


def _check_count(frame: StreamScope, node: n.Barrier, key: Expr, wanted: int) -> None:
    """As many units as meet are all those with the same key (or never come)."""
    numbers = np.arange(frame.level.instances)
    try:
        keys = np.broadcast_to(key.evaluate({"unit": numbers}), numbers.shape)
    except KeyError:
        raise cannot("a barrier whose group changes in a loop", node) from None
    _, counts = np.unique(keys[keys >= 0], return_counts=True)
    if (counts > wanted).any():
        raise cannot("a barrier of some of the units, whichever come,", node)


def _flag(frame: StreamScope, name: str, index: tuple[Expr, ...]) -> Expr:
    home = frame.draft.homes.home(name)
    if not home.flag or home.lead > 1:
        raise cannot(f"a flag in '{name}'", frame.node)
    member: Expr = ZERO
    for extent, at in zip(home.shape, index, strict=True):
        member = member * extent + frame.whole(at)
    return member


@rule(n.Signal)
def _signal(frame: StreamScope, node: n.Signal) -> None:
    home, member = frame.draft.homes.home(node.flag), _flag(frame, node.flag, node.index)
    peer = frame.peer_of(node, node.dst)
    to = frame.owner(home, peer) if peer is not None else None
    if to is None:
        to = unit if home.depth == frame.level.depth else frame.place.rank(0, home.depth)
    frame.emit(pm.Signal(home.name, to, member, frame.whole(node.amount)))


@rule(n.Wait)
def _wait(frame: StreamScope, node: n.Wait) -> None:
    if node.phase is not None:
        raise cannot("a wait for the parity of a phase", node)
    home = frame.draft.homes.home(node.flag)
    frame.emit(pm.Wait(home.name, frame.whole(node.value), _flag(frame, node.flag, node.index)))
