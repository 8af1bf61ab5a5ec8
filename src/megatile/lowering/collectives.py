"""Collectives of a Program: between units of a level by the collectives library (``inline.py``), or by gets
where parts are uneven or merged by a function; and between copies inside one instance.

Every kind is the same few steps, written once: what of whose tile goes where, or is reduced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from megatile.core.dtypes import accumulator, itemsize
from megatile.core.expr import (
    ONE,
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
from megatile.core.operations import REDUCTIONS
from megatile.ir import nodes as n
from megatile.lowering.buffers import Buffers
from megatile.lowering.commands import compute, copy_block, key_of
from megatile.lowering.elements import Command, IterationScope, whole
from megatile.lowering.errors import cannot
from megatile.lowering.inline import inlined
from megatile.lowering.regions import Axis, Block, Regions, length, part
from megatile.lowering.streams import NUMBERS, StreamScope
from megatile.lowering.units import tidy
from megatile.plan import model as pm


@dataclass
class Member:
    """One unit among those of a collective: ``block(region, rank)`` is the tile of another."""

    scope: StreamScope
    node: n.Collective
    size: int
    me: Expr
    block: Callable[[n.Region, Expr], Block]

    def others(self, step: Expr) -> Expr:
        """Return the rank ``step`` places on: units begin with different peers, so that no link is
        crowded."""
        return tidy((self.me + step) % self.size, self.scope.ranges)


def run_of(total: Expr, size: int, rank: Expr) -> tuple[Expr, Expr]:
    """Return the offset and length of a rank's run when a length is shared out equally, rounded up."""
    each = ceil_div(total, size)
    whole = known(total)
    if whole is not None and whole % size == 0:
        return simplify(rank * each), each
    low = minimum(rank * each, total)
    return low, maximum(minimum((rank + 1) * each, total) - low, 0)


def _member(scope: StreamScope, node: n.Collective) -> Member:
    me, size, _ = scope.line(node.axis, node.scale)
    if size > 1 and not scope.meets(node.scale):
        raise cannot(f"T.{node.kind} here", node)

    def theirs(region: n.Region, number: Expr) -> Block:
        peer = scope.peer(number, node.axis, node.scale)
        return Regions(scope, peer).block(region, peer=peer)

    return Member(scope, node, size, tidy(me, scope.ranges), theirs)


def between_units(scope: StreamScope, node: n.Collective) -> None:
    """Write a collective of units of a level of the Plan, by its ``algorithm``."""
    member = _member(scope, node)
    size = member.size
    group = (
        scope.state.declared.barrier(scope.level, key_of(scope, node.axis, node.scale)) if size > 1 else ""
    )

    def barrier() -> None:
        if size > 1:
            scope.emit(pm.Collective("barrier", group))

    gathered = scope.state.homes.gather(node, scope.level.depth)
    if gathered is not None:
        scope.state.declared.home(gathered, scope.level)
    if size > 1 and scope.state.facts.puts:
        barrier()  # what was put before is visible after
    if node.algorithm == "multicast":
        _by_network(member, group)
        return
    if node.algorithm not in ("local", "gets"):
        inlined(scope, node, size, member.me, _buffers(scope, node, size))
        if node.kind == "scatter_view":
            mine = scope.regions.block(node.source[0])
            scope.state.scattered[mine.home.name] = node.dim
            run = run_of(length(mine, node.dim), size, member.me)
            for one in _slices(mine) if mine.home.lead > 1 else ():
                copy_block(scope, part(one, node.dim, *run), part(mine, node.dim, *run))
        return
    if node.kind == "all_to_all" and len(node.source) > 1:
        _counted(member, barrier)
        return
    barrier()
    write = _result(member)
    barrier()
    write()
    if node.kind in ("allgather", "all_to_all", "scatter_view", "gather_view"):
        barrier()


def between_copies(scopes: list[StreamScope], node: n.Collective) -> None:
    """Write a collective of units inside one instance: all results are there before any is written."""
    if node.axis is not None:
        raise cannot(f"T.{node.kind} along an axis inside an instance", node)
    if _all_slices(scopes, node):
        return
    writes = []
    for number, scope in enumerate(scopes):
        member = Member(
            scope, node, len(scopes), Const(number),
            lambda region, rank: scopes[known(rank) or 0].regions.block(region),
        )  # fmt: skip
        writes.append(_result(member))
    for write in writes:
        write()


def _all_slices(scopes: list[StreamScope], node: n.Collective) -> bool:
    """An all-reduce in place of the slices of one tile is one command."""
    first = scopes[0].regions.block(node.source[0])
    same = node.kind == "allreduce" and node.fn is None and node.to == node.source
    if not same or first.home.lead != len(scopes) or first.cut:
        return False
    block = replace(first, axes=(Axis(ZERO, Const(len(scopes)), Const(len(scopes))), *first.axes[1:]))
    attributes = {"axis": 0, "keepdims": True}
    compute(scopes[0], node.op, block, [block], attributes, flops=block.elements, dtype=block.home.dtype)
    return True


def _by_network(member: Member, group: str) -> None:
    """Let the network spread what a root has."""
    node, scope = member.node, member.scope
    source, target = scope.regions.block(node.source[0]), scope.regions.block(node.to[0], True)
    work = pm.Work(ZERO, simplify(source.elements * itemsize(source.home.dtype)), source.home.dtype)
    root = scope.whole(node.root)
    scope.emit(pm.Collective("broadcast", group, source.region(), target.region(), node.op, root, work))


def _buffers(scope: StreamScope, node: n.Collective, size: int) -> Buffers | None:
    """Return the blocks that the library's algorithm reads and writes, if there is one of each."""
    if len(node.to) > 1 or node.fn is not None:
        return None
    targets = scope.regions.blocks(node.to[0], True)
    if node.kind == "gather_view":
        home = scope.state.homes.gathered.get(scope.state.homes.table[node.to[0].source].base)
        targets = [] if home is None else [whole(home)]
    x = scope.regions.block(node.source[0])
    return Buffers.of(node, x, targets[0], size) if len(targets) == 1 else None


def _scratch(member: Member, like: Block, dtype: str | None = None) -> Block:
    """Return a tile of the stream's own with the shape of a block."""
    shape = tuple(known(like.axes[a].size) for a in like.kept_axes)
    if None in shape:
        raise cannot(
            f"T.{member.node.kind} of a region whose extents are known only at run time", member.node
        )
    home = member.scope.state.scratch(
        member.scope, tuple(e or 0 for e in shape), dtype or like.home.dtype, "sum"
    )
    return whole(home)


def _every(member: Member, do: Callable[[Expr], None], first: int = 0) -> None:
    """Do something with every rank from ``first`` on: in a loop, unless there is one or ranks are numbers, as
    inside one instance."""
    scope = member.scope
    number = 0 if isinstance(member.me, Const) else scope.state.declared.fresh()
    if not number or member.size - first == 1:
        for rank in range(first, member.size):
            do(Const(rank))
        return
    name = f"rank_{number}"
    scope.ranges[name] = (first, member.size - 1)
    with scope.stream.inner() as body:
        do(Symbol(name))
    if body:
        scope.emit(pm.Loop(name, Const(first), Const(member.size), tuple(body)))


def _reduced(member: Member, source: Callable[[Expr], Block], like: Block) -> Block:
    """Return the reduction of one block of every rank, in rank order, as wide as sums are."""
    scope, node = member.scope, member.node
    total = _scratch(member, like, accumulator(like.home.dtype))
    copy_block(scope, total, source(ZERO))
    arrived = None if isinstance(member.me, Const) else _scratch(member, like)

    def add(rank: Expr) -> None:
        term = source(rank)
        if arrived is not None:
            copy_block(scope, arrived, term)
            term = arrived
        compute(
            scope, REDUCTIONS[node.op], total, [total, term], flops=total.elements, dtype=total.home.dtype
        )

    if member.size > 1:
        _every(member, add, 1)
    return total


def _result(member: Member) -> Callable[[], None]:
    """Compute a unit's result; what is returned writes it."""
    scope, node = member.scope, member.node
    if node.kind == "gather_view":
        if any(scope.state.homes.found[scope.state.homes.table[r.source].base].views for r in node.to):
            _gather_parts(member)
        return lambda: None  # or the parts lie in one tile: meeting makes them visible
    if len(node.source) > 1 and node.fn is None:
        _counted(member, lambda: None)
        return lambda: None
    if node.fn is not None:
        return _merged(member, node.fn)
    targets = scope.regions.blocks(node.to[0], True)
    dim = node.dim

    def write(value: Block, run: tuple[Expr, Expr] | None = None) -> None:
        for target in targets if run is None else _slices(targets[0]):
            copy_block(scope, target if run is None else part(target, dim, *run), value)

    if member.size == 1:
        own = scope.regions.block(node.source[0])
        if all(t == own or t.home.name != own.home.name for t in targets):
            if node.kind == "scatter_view":
                scope.state.scattered[own.home.name] = dim
            targets = [target for target in targets if target != own]  # one rank has its result
            return lambda: write(own)
    if node.kind in ("allreduce", "reduce_scatter", "scatter_view"):
        mine = scope.regions.block(node.source[0])
        run = None if node.kind == "allreduce" else run_of(length(mine, dim), member.size, member.me)

        def term(rank: Expr) -> Block:
            block = member.block(node.source[0], rank)
            return block if run is None else part(block, dim, *run)

        like = mine if run is None else part(mine, dim, ZERO, ceil_div(length(mine, dim), member.size))
        if run is not None and run[1] != ceil_div(length(mine, dim), member.size):
            raise cannot(f"T.{node.kind} of parts that are not equally long", node)
        total = _reduced(member, term, like)
        if node.kind == "scatter_view":
            assert run is not None
            scope.state.scattered[mine.home.name] = dim
            return lambda: write(total, run)
        return lambda: write(total)
    if node.kind == "broadcast":
        value = _scratch(member, targets[0])
        copy_block(scope, value, member.block(node.source[0], scope.whole(node.root)))
        return lambda: write(value)
    value = _scratch(member, targets[0])

    def piece(rank: Expr) -> None:
        rank = rank if isinstance(member.me, Const) else member.others(rank)
        block = member.block(node.source[0], rank)
        whole = length(value, dim)
        if node.kind == "all_to_all":
            block = part(block, dim, *run_of(length(block, dim), member.size, member.me))
        copy_block(scope, part(value, dim, *run_of(whole, member.size, rank)), block)

    _every(member, piece)
    return lambda: write(value)


def _gather_parts(member: Member) -> None:
    """Copy every unit's part, however long, to its place in the whole."""
    scope = member.scope
    homes, regions = scope.state.homes, scope.regions
    base = homes.table[member.node.to[0].source].base

    def fetch(step: Expr) -> None:
        peer = scope.peer(member.others(step), member.node.axis)
        runs = [
            (tidy(a, scope.ranges), tidy(b, scope.ranges))
            for a, b in regions.part_of_home(homes.found[base], peer)
        ]
        there = Block(
            homes.found[base], tuple(Axis(ZERO, b, b) for _, b in runs), scope.owner(homes.found[base], peer)
        )
        copy_block(scope, Block(homes.gathered[base], tuple(Axis(a, b, b) for a, b in runs)), there)

    _every(member, fetch)


def _counted(member: Member, barrier: Callable[[], None]) -> None:
    """Write an all-to-all of parts whose lengths are data: every unit reads all counts, then gets what is
    its."""
    scope, node, size = member.scope, member.node, member.size
    state = scope.state
    out, x = scope.regions.block(node.to[0], True), scope.regions.block(node.source[0])
    counts = whole(
        state.scratch(scope, (size, size), scope.regions.block(node.source[1]).home.dtype, "counts")
    )
    ends = whole(state.scratch(scope, (size, size), counts.home.dtype, "ends"))
    barrier()

    def row(rank: Expr) -> None:
        copy_block(scope, part(counts, 0, rank, ONE), member.block(node.source[1], rank))

    _every(member, row)
    compute(scope, "cumsum", ends, [counts], {"axis": 1}, flops=counts.elements)
    if len(node.to) > 1:
        copy_block(scope, scope.regions.block(node.to[1], True), part(counts, 1, member.me, ONE))
    held, room = (known(b.axes[b.kept_axes[node.dim]].size) or 0 for b in (x, out))

    def fetch(rank: Expr, at: Expr) -> Expr:
        got, end = (
            scope.read(
                state.declared.name(word), part(part(b, 0, rank, ONE), 1, member.me, ONE).region(), most
            )
            for b, most, word in ((counts, min(held, room), "received"), (ends, held, "end"))
        )
        start = minimum(at, room)
        there = part(member.block(node.source[0], rank), node.dim, end - got, minimum(got, room - start))
        copy_block(scope, part(out, node.dim, start, minimum(got, room - start)), there)
        return at + got

    if isinstance(member.me, Const):  # inside one instance ranks are numbers
        arrived: Expr = ZERO
        for number in range(size):
            arrived = fetch(Const(number), arrived)
        NUMBERS["data"](scope, arrived, room, "arrived")
        return
    name, total = f"rank_{state.declared.fresh()}", Symbol(state.declared.name("arrived"))
    with scope.stream.inner() as body:
        after = fetch(Symbol(name), total)
    scope.emit(pm.Loop(name, ZERO, Const(size), tuple(body), carries=(pm.CarryInt(total.name, ZERO, after),)))
    scope.names[total.name] = total
    NUMBERS["data"](scope, total, room, "arrived")  # more than there is room for stops the run
    barrier()


def _slices(block: Block) -> list[Block]:
    """Return the same block of all slices of its tile: what is read at a larger scale has every unit's
    part."""
    if block.home.lead == 1:
        return [block]
    first, *others = block.axes
    return [replace(block, axes=(replace(first, start=Const(i)), *others)) for i in range(block.home.lead)]


def _merged(member: Member, fn: n.Merge) -> Callable[[], None]:
    """Return a user's function of tuples of tiles, applied to all ranks' one after the other."""
    scope, node = member.scope, member.node
    mine = [scope.regions.block(region) for region in node.source]
    merged, arrived, new = ([_scratch(member, b) for b in mine] for _ in range(3))
    for there, region in zip(merged, node.source, strict=True):
        copy_block(scope, there, member.block(region, ZERO))

    def merge(rank: Expr) -> None:
        for there, region in zip(arrived, node.source, strict=True):
            copy_block(scope, there, member.block(region, rank))
        for number, result in enumerate(fn.results):
            _merge_one(scope, new[number], result, merged, arrived)
        for old, value in zip(merged, new, strict=True):
            copy_block(scope, old, value)

    if member.size > 1:
        _every(member, merge, 1)
    targets = [scope.regions.blocks(region, True) for region in node.to]

    def write() -> None:
        for blocks, value in zip(targets, merged, strict=True):
            for target in blocks:
                copy_block(scope, target, value)

    return write


def _merge_one(
    scope: StreamScope, target: Block, result: Expr, left: list[Block], right: list[Block]
) -> None:
    """Write one result of a merge; tiles with fewer dimensions are repeated over the last ones of others."""
    iterations = IterationScope(scope, tuple((f"i{d}", a.extent) for d, a in enumerate(target.axes)))
    command = Command(iterations)
    names = iterations.index

    def operand(part_of: Expr) -> Expr:
        if not isinstance(part_of, Symbol):
            return part_of
        block = (left if part_of.name[0] == "a" else right)[int(part_of.name[1:])]
        rank = len(block.axes)
        index = (*names[:rank], *(ZERO,) * max(0, rank - len(names)))
        return Call("cast", (command.operand(block, index),), "f32")

    command.emit(target, names, rebuild(result, operand))
