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
from megatile.lowering.loops import branch, loop_scope
from megatile.lowering.messages import by_messages
from megatile.lowering.regions import Block
from megatile.lowering.streams import StreamScope, rule
from megatile.lowering.units import WHOLE
from megatile.plan import model as pm

GROUPS = 1 << 20
"""More groups than a barrier has."""

# --- control --------------------------------------------------------------------------------------


@rule(n.View, n.Reshape, n.Print, n.Check, n.Breakpoint, n.Hint, n.Fence)
def _nothing(scope: StreamScope, node: n.Node) -> None:
    """Resolved (or refused) where it is used, or no part of the result. A signal or meeting waits for puts by
    itself."""


@rule(n.Loop)
def _loop(scope: StreamScope, node: n.Loop) -> None:
    with loop_scope(scope, node) as inner:
        inner.lower(node.body)


@rule(n.If)
def _if(scope: StreamScope, node: n.If) -> None:
    condition = scope.static(node.condition)
    if condition is None:  # it depends on data
        condition = read_number(scope, node.condition, 1, "condition")
    branch([scope], node, condition, lambda scopes, body: scopes[0].lower(body))


rule(n.Parallel, n.Store)(elementwise.statement)
rule(n.AtomicRegion)(elementwise.atomic_region)
rule(n.Collective)(between_units)


# --- variables and memory -------------------------------------------------------------------------


@rule(n.Alloc)
def _alloc(scope: StreamScope, node: n.Alloc) -> None:
    state = scope.state
    if node.name not in state.homes.found:
        state.declared.home(state.homes.tile(node, scope.level.depth), scope.level)


@rule(n.Let)
def _let(scope: StreamScope, node: n.Let) -> None:
    value = scope.static(node.value) if node.value.dtype in WHOLE and node.name not in scope.values else None
    if value is None:
        elementwise.let(scope, node)
        return
    scope.names[node.name] = value
    found = bounds(simplify(value), scope.ranges)
    if found is not None and isinstance(value, Symbol):
        scope.ranges[node.name] = found


@rule(n.ReadScalar)
def _read_scalar(scope: StreamScope, node: n.ReadScalar) -> None:
    bound = node.bound if node.bound is not None else 2**31 - 1
    value = scope.static(node.value)
    if isinstance(node.value, Load) and all(scope.static(i) is not None for i in node.value.index):
        block = scope.regions.block(n.Region(node.value.source, tuple(n.Dim(i) for i in node.value.index)))
        value = scope.read(scope.state.declared.name(node.name), brought(scope, block).region(), bound)
    elif value is None or not bound:  # reading more than 0 stops the run
        value = read_number(scope, node.value, bound, node.name)
    scope.names[node.name] = value


# --- data movement and arithmetic -----------------------------------------------------------------


@rule(n.Copy)
def _copy(scope: StreamScope, node: n.Copy) -> None:
    regions = scope.regions
    there, peer = scope.peer_of(node, node.src), scope.peer_of(node, node.dst)
    reaches = peer is not None or there is not None
    if reaches and node.impl == "software_channel" and by_messages(scope, node):
        return
    source = regions.block(node.source, peer=there)
    between = reach_of(scope, peer or there or scope.place) if reaches else None
    for target in regions.blocks(node.to, True, peer):
        copy_block(scope, target, source, node.impl, between)


@rule(n.Gemm)
def _gemm(scope: StreamScope, node: n.Gemm) -> None:
    regions = scope.regions
    a, b = regions.block(node.a), regions.block(node.b)
    read_c = regions.block(node.c)
    if a.cut or b.cut or read_c.cut:
        raise cannot("a product of regions over the edge of a tensor", node)
    rows = [a.axes[i].extent for i in a.kept_axes][-2:]
    inner = rows[0] if node.transpose_a else rows[1]
    attributes = {k: True for k in ("transpose_a", "transpose_b") if getattr(node, k)}
    engine = node.impl or "vector"
    for c in regions.blocks(node.c, True):
        reads = [a, b] if node.clear else [a, b, read_c]
        name = "gemm" if node.clear else "gemm_add"
        banked = fetched(scope, (a, b)) if engine == "tensor" else ZERO
        flops = work_inside(scope, node, (a, b), engine)
        flops = c.elements * inner * 2 if flops is None else flops
        compute(scope, name, c, reads, attributes, engine, flops, a.home.dtype, banked=banked)


def work_inside(scope: StreamScope, node: n.Gemm, operands: tuple[Block, Block], engine: str) -> Expr | None:
    """Return the operations of a product in a loop that fills both tiles from tensors, where the engine stops
    at their edges; None where it does all of the tiles."""
    steps = next((e.clips for e in scope.state.hda.engines if e.kind == engine), None)
    filled = [scope.state.filled.get(b.home.name, ((), ())) for b in operands if b.is_whole]
    if steps is None or not scope.turns or [turns for turns, _ in filled] != [scope.turns] * 2:
        return None
    (_, left), (_, right) = filled
    rows, inner = left[::-1] if node.transpose_a else left
    depth, columns = right[::-1] if node.transpose_b else right
    whole = [
        minimum((inside + step - 1) // step * step, size)
        for (inside, size), step in zip((rows, columns), steps, strict=True)
    ]
    return whole[0] * whole[1] * minimum(inner[0], depth[0]) * 2


def fetched(scope: StreamScope, operands: tuple[Block, ...]) -> Expr:
    """Return bytes of a product's operands through their banks, where rows that the engine reads at once
    meet."""
    engines = [e for e in scope.state.hda.engines if e.kind == "tensor" and e.fetch]
    total, most = ZERO, 1
    for block in operands if engines else ():
        home, memory = block.home, scope.state.hda.memory(block.home.memory)
        width, fetch = itemsize(home.dtype), engines[0].fetch or (1, 1)
        if memory.banks:
            turns = noted(scope, home, fetch_turns, memory, home.extents, width, fetch)
            total, most = total + block.elements * width * turns, max(most, turns)
    return simplify(total) if most > 1 else ZERO


@rule(n.Fill)
def _fill(scope: StreamScope, node: n.Fill) -> None:
    found = node.value if isinstance(node.value, Const) else scope.static(node.value)
    if found is None:
        elementwise.fill(scope, node)
        return
    value = plain(found)
    for target in scope.regions.blocks(node.to, True):
        compute(scope, "fill", target, [], {"value": value}, flops=target.elements, dtype=target.home.dtype)


@rule(n.Reduce)
def _reduce(scope: StreamScope, node: n.Reduce) -> None:
    regions = scope.regions
    source, old = regions.block(node.source), regions.block(node.to)
    if source.cut:
        raise cannot("a reduction of a region over the edge of a tensor", node)
    if node.impl == "shared":
        middle = between_blocks(scope, source, "l1")
        copy_block(scope, middle, source)
        source = middle
    for target in regions.blocks(node.to, True):
        reads, name = ([source], node.op) if node.clear else ([source, old], f"{node.op}_onto")
        attributes = {"axis": source.kept_axes[node.dim]}
        compute(scope, name, target, reads, attributes, flops=source.elements, dtype=source.home.dtype)


@rule(n.Cumsum)
def _cumsum(scope: StreamScope, node: n.Cumsum) -> None:
    source = scope.regions.block(node.source)
    attributes = {"axis": source.kept_axes[node.dim]} | ({"reverse": True} if node.reverse else {})
    for target in scope.regions.blocks(node.to, True):
        compute(scope, "cumsum", target, [source], attributes, flops=source.elements, dtype=source.home.dtype)


@rule(n.Atomic)
def _atomic(scope: StreamScope, node: n.Atomic) -> None:
    """Lower an atomic; the old value, if it is asked for, is a number of the stream."""
    if node.result is None:
        elementwise.statement(scope, node)
        return
    peer = scope.peer_of(node, node.dst)
    block = scope.regions.block(n.Region(node.target, tuple(n.Dim(i) for i in node.index)), True, peer)
    swaps = node.op in ("cas", "exchange")
    if block.home.dtype not in WHOLE or (swaps and block.home.depth < scope.level.depth):
        # Units that wait for each other's locks would loop forever: the first never lets go.
        raise cannot(f"an atomic_{node.op} of {block.home.dtype} that several units may share", node)
    name = scope.state.declared.name(node.result)
    scope.names[node.result] = scope.read(
        name, block.region(), 2**31 - 1, write=block.region(), combine=node.op,
        expected=ZERO if node.expected is None else scope.whole(node.expected), value=scope.whole(node.value),
    )  # fmt: skip


# --- between units --------------------------------------------------------------------------------


@rule(n.Barrier)
def _barrier(scope: StreamScope, node: n.Barrier) -> None:
    if scope.line(None, node.scale)[1] == 1:
        return
    if not scope.meets(node.scale):
        raise cannot("a barrier here", node)
    key = key_of(scope, node.axis, node.scale)
    if node.group is not None:
        key = select(key < 0, key, key * GROUPS + scope.whole(node.group))
    if isinstance(node.units, int):
        _check_count(scope, node, key, node.units)
    elif node.units is not None:
        me, _, _ = scope.line(node.axis, node.scale)
        among: Expr = ZERO
        for number in node.units:
            among = among | eq(me, number)
        key = select(among, key, -1)
    scope.emit(pm.Collective("barrier", scope.state.declared.barrier(scope.level, key, node.name)))


def _check_count(scope: StreamScope, node: n.Barrier, key: Expr, wanted: int) -> None:
    """As many units as meet are all those with the same key (or never come)."""
    numbers = np.arange(scope.level.instances)
    try:
        keys = np.broadcast_to(key.evaluate({"unit": numbers}), numbers.shape)
    except KeyError:
        raise cannot("a barrier whose group changes in a loop", node) from None
    _, counts = np.unique(keys[keys >= 0], return_counts=True)
    if (counts > wanted).any():
        raise cannot("a barrier that completes before all of its group have arrived", node)


def _flag(scope: StreamScope, name: str, index: tuple[Expr, ...]) -> Expr:
    home = scope.state.homes.home(name)
    if not home.flag or home.lead > 1:
        raise cannot(f"a flag in '{name}'", scope.node)
    member: Expr = ZERO
    for extent, at in zip(home.shape, index, strict=True):
        member = member * extent + scope.whole(at)
    return member


@rule(n.Signal)
def _signal(scope: StreamScope, node: n.Signal) -> None:
    home, member = scope.state.homes.home(node.flag), _flag(scope, node.flag, node.index)
    peer = scope.peer_of(node, node.dst)
    to = scope.owner(home, peer) if peer is not None else None
    if to is None:
        to = unit if home.depth == scope.level.depth else scope.place.rank(0, home.depth)
    scope.emit(pm.Signal(home.name, to, member, scope.whole(node.amount)))


@rule(n.Wait)
def _wait(scope: StreamScope, node: n.Wait) -> None:
    value = node.value if node.phase is None else scope.state.counted_waits.get(node)
    if value is None:
        raise cannot("a wait for the parity of a phase whose number is not known", node)
    home = scope.state.homes.home(node.flag)
    scope.emit(pm.Wait(home.name, scope.whole(value), _flag(scope, node.flag, node.index)))
