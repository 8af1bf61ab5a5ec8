"""Collectives of a Program: between units of a level by gets (or by the network itself, where it can), and
between copies inside one instance.

Every kind is the same few steps, written once: what of whose tile goes where (``_pieces``), or is reduced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.core.dtypes import accumulator, itemsize
from megatile.core.errors import MegatileError
from megatile.core.expr import (
    ZERO,
    Call,
    Const,
    Expr,
    Symbol,
    ceil_div,
    known,
    maximum,
    minimum,
    rebuild,
    simplify,
)
from megatile.hda.model import Unit
from megatile.ir import nodes as n
from megatile.lower.commands import compute, copy_block, key_of
from megatile.lower.elements import Command, Scope, whole
from megatile.lower.errors import cannot
from megatile.lower.regions import Axis, Block
from megatile.lower.residency import spread
from megatile.lower.streams import Frame
from megatile.lower.units import tidy
from megatile.plan import model as pm

COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


@dataclass
class Party:
    """One unit among those of a collective: ``block(region, number)`` is the tile of another."""

    frame: Frame
    node: n.Collective
    size: int
    me: Expr
    block: Callable[[n.Region, Expr], Block]

    def others(self, step: Expr) -> Expr:
        """The rank ``step`` places on: units begin with different peers, so that no link is crowded."""
        return tidy((self.me + step) % self.size, self.frame.ranges)


def part(block: Block, dim: int, offset: Expr, extent: Expr) -> Block:
    """A run of elements of a block along one of its dimensions."""
    at = block.kept[dim]
    axes = list(block.axes)
    axes[at] = axes[at].part(offset, extent)
    return replace(block, axes=tuple(axes))


def length(block: Block, dim: int) -> Expr:
    return block.axes[block.kept[dim]].extent


def run_of(total: Expr, size: int, rank: Expr) -> tuple[Expr, Expr]:
    """Offset and length of a rank's run when a length is shared out equally, rounded up."""
    each = ceil_div(total, size)
    whole = known(total)
    if whole is not None and whole % size == 0:
        return simplify(rank * each), each
    low = minimum(rank * each, total)
    return low, maximum(minimum((rank + 1) * each, total) - low, 0)


def between_units(frame: Frame, node: n.Collective) -> None:
    """A collective of units of a level of the Plan."""
    low, high = frame.group
    launch = frame.place.launch
    grid = launch.grid(launch.scales[high - 1].name, launch.scales[low - 1].name if low else "launch")
    size = math.prod(grid) if node.axis is None else grid[node.axis]
    if size > 1 and frame.level.depth != high:
        raise cannot(f"T.{node.kind} here", node)
    rank = frame.place.rank(low, high)
    me = rank if node.axis is None else rank // math.prod(grid[: node.axis]) % grid[node.axis]
    party = Party(
        frame, node, size, tidy(me, frame.ranges),
        lambda region, number: frame.regions.block(region, peer=frame.peer(number, node.axis)),
    )  # fmt: skip
    group = frame.lowering.barrier(frame.level, key_of(frame, node.axis)) if size > 1 else ""

    def meet() -> None:
        if size > 1:
            frame.emit(pm.Collective("barrier", group))

    if size > 1 and _by_network(party, group):
        return
    if node.kind == "allreduce" and node.fn is None and size > 1:
        _reduce_and_gather(party, meet)
        return
    meet()
    write = _result(party)
    meet()
    write()
    if node.kind in ("allgather", "all_to_all", "scatter_view", "gather_view"):
        meet()


def between_copies(frames: list[Frame], node: n.Collective) -> None:
    """A collective of units inside one instance: all results are there before any is written."""
    if node.axis is not None:
        raise cannot(f"T.{node.kind} along an axis inside an instance", node)
    if _all_slices(frames, node):
        return
    writes = []
    for number, frame in enumerate(frames):
        party = Party(
            frame, node, len(frames), Const(number),
            lambda region, rank: frames[known(rank) or 0].regions.block(region),
        )  # fmt: skip
        writes.append(_result(party))
    for write in writes:
        write()


def _all_slices(frames: list[Frame], node: n.Collective) -> bool:
    """An all-reduce in place of the slices of one tile is one command."""
    first = frames[0].regions.block(node.source[0])
    same = node.kind == "allreduce" and node.fn is None and node.to == node.source
    if not same or first.home.lead != len(frames) or first.cut:
        return False
    lead = Axis(ZERO, Const(len(frames)), Const(len(frames)))
    block = replace(first, axes=(lead, *first.axes[1:]))
    attributes = {"axis": 0, "keepdims": True}
    compute(frames[0], node.op, block, [block], attributes, flops=block.elements, dtype=block.home.dtype)
    return True


def _by_network(party: Party, group: str) -> bool:
    """Let the network do it: a broadcast, or a reduction that the machine's network can do by itself."""
    node, frame = party.node, party.frame
    source = frame.regions.block(node.source[0])
    target = frame.regions.block(node.to[0], True)
    if source.cut or target.cut or node.fn is not None:
        return False
    if node.kind == "allreduce" and node.impl in (None, "in_network") and _network_reduces(party, group):
        kind = "all_reduce"
    elif node.kind == "broadcast":
        kind = "broadcast"
    else:
        return False
    work = pm.Work(ZERO, simplify(source.elements * itemsize(source.home.dtype)), source.home.dtype)
    root = frame.whole(node.root) if node.kind == "broadcast" else ZERO
    frame.emit(pm.Collective(kind, group, source.region(), target.region(), node.op, root, work))
    return True


def _network_reduces(party: Party, group: str) -> bool:
    """Whether every network between the units of the group reduces by itself."""
    frame, lowering = party.frame, party.frame.lowering
    if frame.level is not lowering.first:
        return False
    hda, units = lowering.hda, np.arange(lowering.first.total)
    key = next(g.key for g in lowering.groups.values() if g.name == group)
    keys = np.broadcast_to(key.evaluate({"unit": units}), units.shape)
    members = np.flatnonzero(keys == keys[0])
    places = np.broadcast_to(spread(lowering).evaluate({"unit": units}), units.shape)
    level = hda.scale(frame.level.scale).level
    first, last = (Unit(level, int(places[at])) for at in (members[0], members[-1]))
    try:
        legs = hda.route(first, last).legs
    except MegatileError:
        return False
    return bool(legs) and all(party.node.op in leg.network.in_network_reduction for leg in legs)


def _scratch(party: Party, like: Block, dtype: str | None = None) -> Block:
    """A tile of the stream's own with the shape of a block."""
    shape = tuple(known(like.axes[a].size) for a in like.kept)
    if None in shape:
        raise cannot(f"T.{party.node.kind} of a region whose extents are known only at run time", party.node)
    home = party.frame.lowering.scratch(
        party.frame, tuple(e or 0 for e in shape), dtype or like.home.dtype, "sum"
    )
    return whole(home)


@contextmanager
def _ranks(party: Party, first: int = 0) -> Any:
    """A loop over ranks from ``first`` on; just the body with a number where there is one."""
    frame, name = party.frame, f"rank_{party.frame.lowering.fresh()}"
    if party.size - first == 1:
        yield Const(first)
        return
    frame.ranges[name] = (first, party.size - 1)
    with frame.stream.inner() as body:
        yield Symbol(name)
    if body:
        frame.emit(pm.Loop(name, Const(first), Const(party.size), tuple(body)))


def _every(party: Party, do: Callable[[Expr], None], first: int = 0) -> None:
    if isinstance(party.me, Const):  # inside one instance ranks are numbers
        for rank in range(first, party.size):
            do(Const(rank))
        return
    with _ranks(party, first) as rank:
        do(rank)


def _reduced(party: Party, source: Callable[[Expr], Block], like: Block) -> Block:
    """The reduction of one block of every rank, in rank order, as wide as sums are."""
    frame, node = party.frame, party.node
    total = _scratch(party, like, accumulator(like.home.dtype))
    copy_block(frame, total, source(ZERO))
    arrived = None if isinstance(party.me, Const) else _scratch(party, like)

    def add(rank: Expr) -> None:
        term = source(rank)
        if arrived is not None:
            copy_block(frame, arrived, term)
            term = arrived
        compute(frame, COMBINE[node.op], total, [total, term], flops=total.elements, dtype=total.home.dtype)

    if party.size > 1:
        _every(party, add, 1)
    return total


def _reduce_and_gather(party: Party, meet: Callable[[], None]) -> None:
    """An all-reduce: every rank reduces its part of all terms, then gets the parts of the others."""
    frame, node = party.frame, party.node
    mine, target = frame.regions.block(node.source[0]), frame.regions.block(node.to[0], True)
    sizes = [known(length(mine, d)) or 0 for d in range(len(mine.kept))]
    dim = max(range(len(sizes)), key=lambda d: sizes[d])
    run = run_of(length(mine, dim), party.size, party.me)
    meet()
    room = part(mine, dim, ZERO, ceil_div(length(mine, dim), party.size))
    total = _scratch(party, room, accumulator(mine.home.dtype))
    arrived = _scratch(party, room)
    here = part(total, dim, ZERO, run[1])
    copy_block(frame, here, part(mine, dim, *run))

    def add(step: Expr) -> None:
        term = part(arrived, dim, ZERO, run[1])
        copy_block(frame, term, part(party.block(node.source[0], party.others(step)), dim, *run))
        compute(frame, COMBINE[node.op], here, [here, term], flops=here.elements, dtype=here.home.dtype)

    _every(party, add, 1)
    copy_block(frame, part(target, dim, *run), here)
    meet()

    def fetch(step: Expr) -> None:
        rank = party.others(step)
        there = run_of(length(mine, dim), party.size, rank)
        copy_block(frame, part(target, dim, *there), part(party.block(node.to[0], rank), dim, *there))

    _every(party, fetch, 1)
    meet()


def _result(party: Party) -> Callable[[], None]:
    """Compute a unit's result; what is returned writes it."""
    frame, node = party.frame, party.node
    if node.kind == "gather_view":  # the parts lie in one tile: meeting makes them visible
        if any(frame.lowering.homes.home(region.source).views for region in node.to):
            raise cannot("T.allgather of a divided tensor", node, "T.allgather(out, x) gathers into a tile")
        return lambda: None
    if len(node.to) > 1 and node.fn is None:
        raise cannot(f"T.{node.kind} with counts", node)
    if node.fn is not None:
        return _merged(party, node.fn)
    targets = frame.regions.blocks(node.to[0], True)
    dim = node.dim

    def write(value: Block, run: tuple[Expr, Expr] | None = None) -> None:
        for target in targets if run is None else _slices(targets[0]):
            copy_block(frame, target if run is None else part(target, dim, *run), value)

    if node.kind in ("allreduce", "reduce_scatter", "scatter_view"):
        mine = frame.regions.block(node.source[0])
        run = None if node.kind == "allreduce" else run_of(length(mine, dim), party.size, party.me)

        def term(rank: Expr) -> Block:
            block = party.block(node.source[0], rank)
            return block if run is None else part(block, dim, *run)

        like = mine if run is None else part(mine, dim, ZERO, ceil_div(length(mine, dim), party.size))
        if run is not None and run[1] != ceil_div(length(mine, dim), party.size):
            raise cannot(f"T.{node.kind} of parts that are not equally long", node)
        total = _reduced(party, term, like)
        if node.kind == "scatter_view":
            assert run is not None
            frame.lowering.scattered[mine.home.name] = dim
            return lambda: write(total, run)
        return lambda: write(total)
    if node.kind == "broadcast":
        value = _scratch(party, targets[0])
        copy_block(frame, value, party.block(node.source[0], frame.whole(node.root)))
        return lambda: write(value)
    value = _scratch(party, targets[0])

    def piece(rank: Expr) -> None:
        rank = rank if isinstance(party.me, Const) else party.others(rank)
        block = party.block(node.source[0], rank)
        whole = length(value, dim)
        if node.kind == "all_to_all":
            block = part(block, dim, *run_of(length(block, dim), party.size, party.me))
        there = run_of(whole, party.size, rank)
        copy_block(frame, part(value, dim, *there), block)

    _every(party, piece)
    return lambda: write(value)


def _slices(block: Block) -> list[Block]:
    """The same block of all slices of its tile: what is read at a larger scale has every unit's part."""
    if block.home.lead == 1:
        return [block]
    first, *others = block.axes
    return [replace(block, axes=(replace(first, start=Const(i)), *others)) for i in range(block.home.lead)]


def _merged(party: Party, fn: n.Merge) -> Callable[[], None]:
    """A user's function of tuples of tiles, applied to all ranks' one after the other."""
    frame, node = party.frame, party.node
    mine = [frame.regions.block(region) for region in node.source]
    state, arrived, new = ([_scratch(party, b) for b in mine] for _ in range(3))
    for there, region in zip(state, node.source, strict=True):
        copy_block(frame, there, party.block(region, ZERO))

    def merge(rank: Expr) -> None:
        for there, region in zip(arrived, node.source, strict=True):
            copy_block(frame, there, party.block(region, rank))
        for number, result in enumerate(fn.results):
            _merge_one(frame, new[number], result, state, arrived)
        for old, value in zip(state, new, strict=True):
            copy_block(frame, old, value)

    if party.size > 1:
        _every(party, merge, 1)
    targets = [frame.regions.blocks(region, True) for region in node.to]

    def write() -> None:
        for blocks, value in zip(targets, state, strict=True):
            for target in blocks:
                copy_block(frame, target, value)

    return write


def _merge_one(frame: Frame, target: Block, result: Expr, left: list[Block], right: list[Block]) -> None:
    """One result of a merge; tiles with fewer dimensions are repeated over the last ones of others."""
    scope = Scope(frame, tuple((f"i{d}", a.extent) for d, a in enumerate(target.axes)))
    command = Command(scope)
    names = scope.index

    def operand(part_of: Expr) -> Expr:
        if not isinstance(part_of, Symbol):
            return part_of
        block = (left if part_of.name[0] == "a" else right)[int(part_of.name[1:])]
        rank = len(block.axes)
        index = (*names[:rank], *(ZERO,) * max(0, rank - len(names)))
        return Call("cast", (command.operand(block, index),), "f32")

    command.emit(target, names, rebuild(result, operand))
