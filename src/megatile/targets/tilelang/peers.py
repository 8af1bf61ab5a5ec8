"""Collectives between devices, or between blocks of a cluster, as puts to peers and barriers.

T.allreduce(C)    ->    copy(gathered[me], C, dst=peer) for every peer; barrier
                        C[i, j] = gathered[0, i, j] + gathered[1, i, j] + ...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from megatile.core.expr import (
    Binary,
    Const,
    Expr,
    Symbol,
    applied,
    expr as integer,
    known,
    rebuild,
    simplify,
)
from megatile.ir import nodes as n
from megatile.ir.expr import Load, Rank
from megatile.ir.launch import ROOT, Launch
from megatile.ir.program import Program, base_name, bindings
from megatile.targets.common.errors import CompileError

_COMBINED = {"sum": "+", "prod": "*", "max": "max", "min": "min", "and": "&", "or": "|"}


def member(launch: Launch, scale: str, within: str, axis: int | None) -> tuple[Expr, int]:
    """Return the number of a unit in its group (along an axis), and how many are in it."""
    rank: Expr = Rank(scale, within)
    extents = launch.grid(scale, within)
    if axis is None:
        return rank, math.prod(extents)
    return simplify(rank // math.prod(extents[:axis]) % extents[axis]), extents[axis]


def with_puts(program: Program) -> Program:
    """Return the Program without collectives of devices and of blocks."""
    pass_ = _Puts(program)
    return replace(program, body=pass_.body(program.body, (ROOT,)))


@dataclass
class _Puts:
    program: Program
    made: int = 0
    allocs: list[n.Alloc] = field(default_factory=list)

    def body(self, body: tuple[n.Node, ...], scales: tuple[str, ...]) -> tuple[n.Node, ...]:
        found: list[n.Node] = []
        for node in body:
            if isinstance(node, n.Collective) and self.launch.depth(node.scale) <= self.launch.depth("block"):
                found += self.expanded(node, scales)
            else:
                inner = (*scales, node.scale) if isinstance(node, n.ScaleRegion) else scales
                found.append(n.with_bodies(node, lambda part, inner=inner: self.body(part, inner)))  # type: ignore[misc]
        return tuple(found)

    @property
    def launch(self) -> Launch:
        return self.program.launch

    def expanded(self, node: n.Collective, scales: tuple[str, ...]) -> list[n.Node]:
        within = scales[scales.index(node.scale) - 1]
        me, count = member(self.launch, node.scale, within, node.axis)
        rule = _KINDS.get(node.kind)
        if rule is None or (node.kind == "all_to_all" and len(node.source) > 1):
            raise CompileError(
                f"T.{node.kind} {'with counts ' * (len(node.source) > 1)}has no counterpart in TileLang",
                place=node.place,
                advice="write it with T.copy(dst=) and T.barrier()",
            )
        try:
            return [replace(one, span=node.span) for one in rule(_Group(self, node, me, count))]
        except CompileError as error:
            error.place = error.place or node.place
            raise


@dataclass
class _Group:
    """The units that meet at a collective."""

    puts: _Puts
    node: n.Collective
    me: Expr
    count: int

    def barrier(self) -> n.Node:
        return n.Barrier(self.node.scale, self.node.axis)

    def put(self, to: n.Region, source: n.Region, peer: int) -> n.Node:
        return n.Copy(to, source, dst=Const(peer), axis=self.node.axis, scale=self.node.scale)

    def everyone(self, to: n.Region, source: n.Region) -> list[n.Node]:
        return [self.put(to, source, peer) for peer in range(self.count)]

    def inbox(
        self, like: n.Region, extents: tuple[int, ...] | None = None
    ) -> tuple[n.Node, Callable[[Any], n.Region]]:
        """Return a tile with a place for what each member sends, and its parts."""
        shape = extents or sizes(like)
        self.puts.made += 1
        name = f"received_{self.puts.made}"
        kind = bindings(self.puts.program)[like.source].dtype
        level = "shared" if self.node.scale == "block" else "hbm"
        made = n.Alloc(name, (self.count, *shape), kind, level, self.node.scale)
        return made, lambda who: n.Region(
            name, (n.Dim(integer(who)), *(n.Dim(Const(0), Const(extent)) for extent in shape))
        )

    def combined(self, to: n.Region, part: Callable[[Any], n.Region], op: str) -> n.Node:
        """Element by element, what all have sent."""
        if op not in _COMBINED:
            raise CompileError(f"a reduction by '{op}' has no counterpart in TileLang", advice="op='sum'")
        names = tuple(f"i{self.puts.made}_{d}" for d in range(len(to.extents)))
        kind = bindings(self.puts.program)[to.source].dtype
        loads = [element(part(who), names, kind) for who in range(self.count)]
        value = reduce(lambda a, b: applied(_COMBINED[op], (a, b), kind), loads)
        target = indices(to, names)
        return n.Parallel(names, to.extents, (n.Store(to.source, target, value),))


def sizes(region: n.Region) -> tuple[int, ...]:
    """Return the extents of a region, which must be numbers."""
    found = tuple(known(simplify(extent)) for extent in region.extents)
    if any(extent is None for extent in found):
        raise CompileError(
            f"a collective of a part of '{base_name(region.source)}' whose extent is known only at run time",
            advice="give numbers",
        )
    return found  # type: ignore[return-value]


def indices(region: n.Region, names: tuple[str, ...]) -> tuple[Expr, ...]:
    """Return the element of a region at loop variables; the first one along dimensions beyond theirs."""
    left = iter(names)
    places = ((d, next(left, None) if d.extent is not None else None) for d in region.dims)
    return tuple(d.start if name is None else simplify(d.start + Symbol(name)) for d, name in places)


def substituted(value: Expr, values: dict[str, Expr]) -> Expr:
    return rebuild(value, lambda e: values[e.name] if isinstance(e, Symbol) and e.name in values else e)


def element(region: n.Region, names: tuple[str, ...], kind: str) -> Expr:
    return Load(region.source, indices(region, names), kind)


def _slice(region: n.Region, dim: int, number: Expr | int, length: int) -> n.Region:
    """Return the ``number``-th run of a region along a dimension."""
    at = [i for i, d in enumerate(region.dims) if d.extent is not None][dim]
    dims = list(region.dims)
    dims[at] = n.Dim(simplify(dims[at].start + integer(number) * length), Const(length))
    return replace(region, dims=tuple(dims))


def _allreduce(group: _Group) -> list[n.Node]:
    node = group.node
    inboxes = [group.inbox(source) for source in node.source]
    puts = [
        put
        for source, (_, part) in zip(node.source, inboxes, strict=True)
        for put in group.everyone(part(group.me), source)
    ]
    made = [made for made, _ in inboxes]
    if node.fn is None:
        return [*made, *puts, group.barrier(), group.combined(node.to[0], inboxes[0][1], node.op)]
    return [*made, *puts, group.barrier(), *_merged(group, [part for _, part in inboxes])]


def _merged(group: _Group, parts: list[Callable[[Any], n.Region]]) -> list[n.Node]:
    """Return the user's function over what all have sent, one after the other, for the elements of each
    result."""
    node, fn, program = group.node, group.node.fn, group.puts.program
    assert fn is not None
    result: list[n.Node] = []
    for number, to in enumerate(node.to):
        names = tuple(f"i{group.puts.made}_{number}_{d}" for d in range(len(to.extents)))
        body: list[n.Node] = []
        merged: list[Expr] = []
        for who in range(group.count):
            other = [
                element(part(who), names, bindings(program)[source.source].dtype)
                for part, source in zip(parts, node.source, strict=True)
            ]
            if merged:
                values = {f"a{i}": v for i, v in enumerate(merged)} | {
                    f"b{i}": v for i, v in enumerate(other)
                }
                other = [substituted(expr, values) for expr in fn.results]
            lets = [n.Let(f"m{group.puts.made}_{number}_{who}_{i}", value) for i, value in enumerate(other)]
            body += lets
            merged = [Symbol(let.name, let.value.dtype) for let in lets]
        body.append(n.Store(to.source, indices(to, names), merged[number]))
        result.append(n.Parallel(names, to.extents, tuple(body)))
    return result


def _allgather(group: _Group) -> list[n.Node]:
    node = group.node
    length = sizes(node.source[0])[node.dim]
    mine = _slice(node.to[0], node.dim, group.me, length)
    return [group.barrier(), *group.everyone(mine, node.source[0]), group.barrier()]


def _reduce_scatter(group: _Group) -> list[n.Node]:
    node = group.node
    shape = sizes(node.to[0])
    if shape[node.dim] * group.count != sizes(node.source[0])[node.dim]:
        raise CompileError("a reduce-scatter of uneven parts has no counterpart in TileLang", advice="pad")
    made, part = group.inbox(node.source[0], shape)
    puts = [
        group.put(part(group.me), _slice(node.source[0], node.dim, peer, shape[node.dim]), peer)
        for peer in range(group.count)
    ]
    return [made, *puts, group.barrier(), group.combined(node.to[0], part, node.op)]


def _scatter_view(group: _Group) -> list[n.Node]:
    node = group.node
    whole = sizes(node.source[0])
    if whole[node.dim] % group.count:
        raise CompileError("a reduce-scatter of uneven parts has no counterpart in TileLang", advice="pad")
    length = whole[node.dim] // group.count
    shape = tuple(length if d == node.dim else extent for d, extent in enumerate(whole))
    made, part = group.inbox(node.source[0], shape)
    puts = [
        group.put(part(group.me), _slice(node.source[0], node.dim, peer, length), peer)
        for peer in range(group.count)
    ]
    mine = _slice(node.to[0], node.dim, group.me, length)
    return [made, *puts, group.barrier(), group.combined(mine, part, node.op)]


def _all_to_all(group: _Group) -> list[n.Node]:
    node = group.node
    whole = sizes(node.source[0])
    length = whole[node.dim] // group.count
    shape = tuple(length if d == node.dim else extent for d, extent in enumerate(whole))
    made, part = group.inbox(node.source[0], shape)
    puts = [
        group.put(part(group.me), _slice(node.source[0], node.dim, peer, length), peer)
        for peer in range(group.count)
    ]
    copies = [n.Copy(_slice(node.to[0], node.dim, who, length), part(who)) for who in range(group.count)]
    return [made, *puts, group.barrier(), *copies]


def _broadcast(group: _Group) -> list[n.Node]:
    node = group.node
    made, part = group.inbox(node.source[0])
    root = n.If(Binary("==", group.me, node.root, "bool"), tuple(group.everyone(part(0), node.source[0])))
    return [made, root, group.barrier(), n.Copy(node.to[0], part(0))]


def _gather_view(group: _Group) -> list[n.Node]:
    node = group.node
    return [group.barrier(), *group.everyone(node.source[0], node.source[0]), group.barrier()]


_KINDS: dict[str, Callable[[_Group], list[n.Node]]] = {
    "allreduce": _allreduce, "allgather": _allgather, "reduce_scatter": _reduce_scatter,
    "scatter_view": _scatter_view, "all_to_all": _all_to_all, "broadcast": _broadcast,
    "gather_view": _gather_view,
}  # fmt: skip
