"""Replace views by what they view: regions of storages with this unit's origin written out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from megatile.core.expr import Const, Expr, applied, rebuild, simplify
from megatile.core.placement import Mesh, Replicate, Shard, has_copies
from megatile.ir import nodes as n
from megatile.ir.expr import Load, Rank
from megatile.ir.launch import ROOT
from megatile.ir.passes.driver import rewrite_expressions, rewrite_nodes
from megatile.ir.program import Binding, Program, bindings


@dataclass(frozen=True)
class ResolveViews:
    """``v = view("A", shard(1), "device"); copy(t, v[anchor(0, 8), anchor(k * 4, 4)])`` →
    ``copy(t, A[anchor(0, 8), anchor(rank("device", "launch") * 64 + k * 4, 4, (rank + 1) * 64)])``.

    Shard, Mesh and Replicate views are replaced; the View statements stay, for they say how storages are
    placed.
    Partial views, owner functions and regions of other units (put, get, flags, collectives) keep their views.
    """

    name: str = "views"

    def apply(self, program: Program) -> Program:
        resolver = _Resolver(program)
        return replace(program, body=rewrite_nodes(program.body, resolver.statement))


class _Resolver:
    def __init__(self, program: Program):
        self.program = program
        self.table = bindings(program)

    def statement(self, node: n.Node) -> n.Node:
        if isinstance(node, (n.Collective, n.Signal, n.Wait)):
            return node
        if n.remote(node) is not None:
            return rewrite_expressions(node, self.expr)
        node = rewrite_expressions(node, self.expr)
        if isinstance(node, (n.Store, n.Atomic)) and self.can(node.target):
            binding = self.table[node.target]
            index = tuple(_plus(o, i) for o, i in zip(self.origin(binding), node.index, strict=True))
            return replace(node, target=binding.base, index=index)
        changes: dict[str, Any] = {}
        for name in ("to", "source", "a", "b", "c"):
            value = getattr(node, name, None)
            if isinstance(value, n.Region):
                changes[name] = self.region(value)
        return replace(node, **changes) if changes else node

    def expr(self, expr: Expr) -> Expr:
        return rebuild(expr, self.load)

    def load(self, expr: Expr) -> Expr:
        if not isinstance(expr, Load) or not self.can(expr.source):
            return expr
        binding = self.table[expr.source]
        index = tuple(_plus(o, i) for o, i in zip(self.origin(binding), expr.index, strict=True))
        return Load(binding.base, index, expr.dtype)

    def can(self, name: str) -> bool:
        binding = self.table[name]
        """Copies of a Mesh hold different parts; those views stay."""
        views = binding.views
        return binding.is_view and all(
            isinstance(v.layout, (Shard, Replicate))
            or (isinstance(v.layout, Mesh) and not has_copies(v.layout))
            for v in views
        )

    def region(self, region: n.Region) -> n.Region:
        dims = list(region.dims)
        along = region.along
        if along is not None and self.can(along):
            spare = len(dims) - len(region.extents)
            origin = self.origin(self.table[along])
            lengths = self.table[region.source].shape
            for d, start in enumerate(origin, start=spare):
                # A part may lie outside where the whole tile does not: with a limit that is no error.
                dims[d] = replace(dims[d], start=_plus(start, dims[d].start), limit=Const(lengths[d]))
            along = None
        if not self.can(region.source):
            return n.Region(region.source, tuple(dims), along)
        binding = self.table[region.source]
        ends = self.ends(binding)
        for d, (start, end) in enumerate(zip(self.origin(binding), ends, strict=True)):
            limit = end if dims[d].anchored and end is not None else dims[d].limit
            dims[d] = replace(dims[d], start=_plus(start, dims[d].start), limit=limit)
        return n.Region(binding.base, tuple(dims), along)

    def shares(self, binding: Binding) -> list[tuple[Expr, Expr | None]]:
        """Start and end (None: the storage's own) of this unit's share of every dimension."""
        result: list[tuple[Expr, Expr | None]] = [(Const(0), None) for _ in binding.shape]
        lengths = list(binding.shape)
        within = self.owner(binding)
        for view in binding.views:
            for dim, units, rank in self.cuts(view, within):
                size = -(-lengths[dim] // units)
                start, end = result[dim]
                low = _plus(start, applied("*", (rank, Const(size))))
                stop = end if end is not None else Const(binding.shape[dim])
                result[dim] = (low, simplify(applied("min", (stop, _plus(low, Const(size))))))
                lengths[dim] = size
            within = view.scale
        return result

    def origin(self, binding: Binding) -> list[Expr]:
        return [start for start, _ in self.shares(binding)]

    def ends(self, binding: Binding) -> list[Expr | None]:
        return [end for _, end in self.shares(binding)]

    def owner(self, binding: Binding) -> str:
        return self.table[binding.base].scale if binding.base in self.table else ROOT

    def cuts(self, view: n.View, within: str) -> list[tuple[int, int, Expr]]:
        """(dimension, units that share it, this unit's number among them)."""
        grid = self.program.launch.grid(view.scale, within)
        rank: Expr = Rank(view.scale, within)
        if isinstance(view.layout, Shard):
            if view.layout.axis is None:
                return [(view.layout.dim, math.prod(grid), rank)]
            return [(view.layout.dim, grid[view.layout.axis], _along(rank, grid, view.layout.axis))]
        if isinstance(view.layout, Mesh):
            axes = enumerate(view.layout.axes)
            return [(one.dim, grid[a], _along(rank, grid, a)) for a, one in axes if isinstance(one, Shard)]
        return []


def _along(rank: Expr, grid: tuple[int, ...], axis: int) -> Expr:
    whole = applied("//", (rank, Const(math.prod(grid[:axis]))))
    return simplify(applied("%", (whole, Const(grid[axis]))))


def _plus(left: Expr, right: Expr) -> Expr:
    return simplify(applied("+", (left, right)))
