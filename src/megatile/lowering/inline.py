"""A collective of a Program by an algorithm of the collectives library, with the program's tiles as buffers.

The library's Plan moves elements of one-dimensional tiles; here an element is a row: all that lies at one
index of the dimension that is shared out. Its ranks become units of the group, its buffers blocks of homes,
its channels and scratch tiles those of the level. What cannot be said so (blocks over an edge or of extents
that only data tells, parts that are not equally long) is not inlined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from megatile.core.expr import ZERO, Const, Expr, Symbol, bounds, known, select, simplify, substitute
from megatile.ir import nodes as n
from megatile.lowering.buffers import Asked, Buffers
from megatile.lowering.commands import key_of
from megatile.lowering.elements import whole
from megatile.lowering.regions import Block, part
from megatile.lowering.residency import hardware_units
from megatile.lowering.streams import StreamScope
from megatile.lowering.units import tidy
from megatile.plan import model as pm
from megatile.plan.spec import parts


def inlined(scope: StreamScope, node: n.Collective, size: int, me: Expr, buffers: Buffers | None) -> None:
    """Write the collective as the library does it."""
    state, level = scope.state, scope.level

    def members() -> list[int]:
        return hardware_units(state.structure, level, scope.stream.first, scope.among(node.scale), node.axis)

    root = known(scope.whole(node.root))
    from megatile.lowering.library_plans import library_plan

    found = library_plan(Asked(state.hda, level.scale, node, size, members, root, buffers))
    assert found is not None
    assert buffers is not None
    _Inliner(scope, node, me, buffers, found.plan).write()


@dataclass
class _Inliner:
    """One Plan of the library on its way into a stream."""

    scope: StreamScope
    node: n.Collective
    me: Expr
    buffers: Buffers
    plan: pm.Plan
    names: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    numbers: dict[str, Expr] = field(default_factory=dict)

    def write(self) -> None:
        state = self.scope.state
        self.numbers["unit"] = self.me
        self.row = self.buffers.row or ()
        self.axis = self.buffers.x.kept_axes[self.buffers.dim]
        for tile in self.plan.tiles:
            if tile.name in ("x", "y"):
                self.blocks[tile.name] = self.buffers.x if tile.name == "x" else self.buffers.y
            else:
                home = state.scratch(self.scope, self.shape(tile.shape[0]), tile.dtype, tile.name)
                self.blocks[tile.name] = whole(home)
        for channel in self.plan.channels:
            self.channel(channel)
        for statement in self.body(self.plan.streams[0].body):
            self.scope.emit(statement)

    def shape(self, rows: int) -> tuple[int, ...]:
        return tuple(rows if d == self.axis else e for d, e in enumerate(self.row))

    def channel(self, channel: pm.Channel) -> None:
        """Declare the same queues between the units of every group; other instances of the level have
        none."""
        state, key = self.scope.state, key_of(self.scope, self.node.axis, self.node.scale)
        feeds = self.expr(channel.source)
        source = select(feeds < 0, -1, self.unit_at(feeds))
        if self.scope.stream.meets is not None:
            source = select(key < 0, -1, source)
        made = replace(
            channel,
            source=tidy(source, {**self.scope.ranges, "member": (0, channel.members - 1)}),
            slot_bytes=channel.slot_bytes * math.prod(self.row),
            level=self.scope.level.name,
            transport=self.transport(channel.transport),
        )
        # Collectives that are alike have one: units meet at whatever line they come to it.
        self.names[channel.name] = state.declared.channel(made)

    def transport(self, name: str | None) -> str | None:
        """Return the same transport of the program's plan."""
        if name is None:
            return None
        asked = (self.plan.name.partition(" ")[0], self.plan.units)
        return self.scope.state.declared.transport(self.plan.transport(name), asked)

    # --- numbers and regions ----------------------------------------------------------------------

    def expr(self, value: Expr) -> Expr:
        return tidy(substitute(value, self.numbers), self.scope.ranges)

    def unit_at(self, rank: Expr) -> Expr:
        scope = self.scope
        return tidy(scope.number(scope.peer(rank, self.node.axis, self.node.scale)), scope.ranges)

    def region(self, region: pm.Region) -> pm.Region:
        block = self.blocks.get(region.tile)
        if block is None:  # a message: all of it, or rows of it
            if not region.start:
                return pm.Region(self.renamed(region.tile))
            start = tuple(e if d == self.axis else ZERO for d, e in enumerate(self.extents(region.start)))
            return pm.Region(self.renamed(region.tile), start, self.extents(region.shape))
        if region.start:
            axis = self.expr(region.start[0]), self.expr(region.shape[0])
            block = part(block, block.kept_axes.index(self.axis), *axis)
        return block.region()

    def extents(self, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.expr(shape[0]) if d == self.axis else Const(e) for d, e in enumerate(self.row))

    def work(self, work: pm.Work) -> pm.Work:
        row = math.prod(self.row)
        return pm.Work(
            simplify(self.expr(work.flops) * row), simplify(self.expr(work.bytes) * row), work.dtype
        )

    def renamed(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = self.scope.state.declared.name(name)
        return self.names[name]

    # --- statements -------------------------------------------------------------------------------

    def body(self, body: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self.statement(s) for s in body)

    def statement(self, s: Any) -> Any:
        """Return the same statement of the program's stream."""
        rule: Any = {pm.Loop: self.loop, pm.If: self.branch}.get(type(s), self.command)
        return replace(rule(s), source=self.node.place)

    def command(self, s: Any) -> Any:
        """Return every field as its declaration says."""
        change: dict[str, Any] = {}
        for one in parts(type(s)):
            rule, value = _FIELDS.get(one.role) or _FIELDS.get(one.kind), getattr(s, one.name)
            if rule is not None and value is not None:
                change[one.name] = rule(self, value)
        if isinstance(s, pm.Send):
            change["to"] = self.unit_at(change["to"])
        if isinstance(s, pm.Compute) and self.plan.kernel is not None:
            change["by"] = self.transport(self.plan.kernel)
        if isinstance(s, pm.Start) and self.node.kind != "broadcast":  # only the root has data then
            change["read"] = self.buffers.x.region()
        return replace(s, **change)

    def group(self, name: str) -> str:
        scope = self.scope
        group = next(g for g in self.plan.groups if g.name == name)
        own, wider = key_of(scope, self.node.axis, self.node.scale), self.expr(group.key)
        key = own if wider == Const(0) else select(own < 0, own, own * self.plan.units + wider)
        transport = self.transport(group.transport)
        return scope.state.declared.barrier(scope.level, tidy(key, scope.ranges), transport=transport)

    def value(self, value: Any) -> Any:
        """Return a number, or the name of a tile."""
        return self.renamed(value) if isinstance(value, str) else self.expr(value)

    def loop(self, s: pm.Loop) -> pm.Loop:
        index = self.scope.state.declared.name(s.index)
        self.numbers[s.index] = Symbol(index)
        inits = [self.value(c.init) for c in s.carries]
        for carry in s.carries:
            if isinstance(carry, pm.CarryInt):
                self.numbers[carry.name] = Symbol(self.renamed(carry.name))
        limits = self.expr(s.start), self.expr(s.stop), self.expr(s.step)
        low, high = (bounds(e, self.scope.ranges) for e in limits[:2])
        if low is not None and high is not None and known(limits[2]) == 1:
            self.scope.ranges[index] = (low[0], max(low[0], high[1] - 1))
        body = self.body(s.body)
        carries: Any = (
            type(c)(self.renamed(c.name), init, self.value(c.next))
            for c, init in zip(s.carries, inits, strict=True)
        )
        frees = tuple(self.renamed(f) for f in s.frees)
        return pm.Loop(index, *limits[:2], body, limits[2], tuple(carries), frees)

    def branch(self, s: pm.If) -> pm.If:
        condition, body, orelse = self.expr(s.condition), self.body(s.body), self.body(s.orelse)
        merges: list[Any] = []
        for merge in s.merges:
            sides = self.value(merge.then), self.value(merge.orelse)
            merges.append(type(merge)(self.renamed(merge.name), *sides))
            if isinstance(merge, pm.MergeInt):
                self.numbers[merge.name] = Symbol(self.names[merge.name])
        return pm.If(condition, body, orelse, tuple(merges))


_FIELDS: dict[str, Callable[[_Inliner, Any], Any]] = {
    "channel": lambda inliner, name: inliner.names[name],
    "transport": _Inliner.transport,
    "group": _Inliner.group,
    "binds": _Inliner.renamed,
    "words": lambda inliner, names: tuple(map(inliner.renamed, names)),
    "expr": _Inliner.expr,
    "region": _Inliner.region,
    "regions": lambda inliner, regions: tuple(map(inliner.region, regions)),
    "typed": _Inliner.extents,
    "work": _Inliner.work,
}
"""What becomes of a field, by its role or else its kind."""
