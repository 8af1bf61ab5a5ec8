"""Tiles that elementwise code would only pass on: tensors are read, and written, where they lie.

``copy(x, X[b, 0]); reduce(x); for i, j: x[i, j] = f(x[i, j])`` reads ``X`` twice instead of copying it first;
``for i, j: x[i, j] = g(…); copy(Y[b, 0], x)`` writes ``Y`` at once. Only where the region surely exists.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from megatile.core.dtypes import is_float
from megatile.core.expr import Expr, Symbol, binary, constant, rebuild, simplify, symbols
from megatile.core.expr.typing import cast
from megatile.ir import nodes as n
from megatile.ir.expr import Load, loads
from megatile.ir.passes.driver import rewrite_expressions
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program, base_name, bindings
from megatile.targets.common.elements import NARROW


def forwarded(program: Program) -> Program:
    return replace(program, body=_Forward(program).body(program.body))


class _Forward:
    def __init__(self, program: Program):
        self.table = bindings(program)
        self.params = {p.name for p in program.params}
        self.uses = Counter(base_name(r.source) for node in n.walk(program.body) for _, r in n.regions(node))
        self.unit = Unit(program.launch, ranges=_loops(program))
        self.constant = self.params - {self.table[name].base for name in n.written(program.body)}

    def body(self, body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        nodes = [node if isinstance(node, n.Parallel) else n.with_bodies(node, self.body) for node in body]
        at = 0
        while at < len(nodes):
            changed = self.read_in_place(nodes, at)
            if changed is not None:
                nodes = nodes[:at] + changed
                continue
            written = self.written_in_place(nodes, at)
            if written is not None:
                nodes[at : at + 2] = [written]
            at += 1
        return tuple(nodes)

    # --- reading ----------------------------------------------------------------------------------

    def read_in_place(self, nodes: list[n.Node], at: int) -> list[n.Node] | None:
        """Return the statements from a copy on, without it."""
        copy = nodes[at]
        if not isinstance(copy, n.Copy) or not self.is_tile(copy.to) or not self.exists(copy.source, copy.to):
            return None
        if copy.source.source not in self.constant or copy.dst is not None or copy.src is not None:
            return None
        tile, result, touched, readers = copy.to.source, list(nodes[at + 1 :]), 1, 0
        for number, node in enumerate(result):
            used = sum(r.source == tile for x in n.walk((node,)) for _, r in n.regions(x))
            if isinstance(node, n.Let) and any(node.name in symbols(e) for e in copy.source.expressions()):
                return None
            if not used:
                continue
            touched += used
            readers += 1
            if isinstance(node, n.Reduce) and node.source == copy.to and node.to.source != tile:
                result[number] = replace(node, source=copy.source)
            elif isinstance(node, n.Parallel) and not node.in_step:
                stores = [x for x in n.walk(node.body) if isinstance(x, n.Store) and x.target == tile]
                plain = all(isinstance(x, (n.Store, n.Let)) for x in node.body)
                if not plain or (stores and not (len(node.body) == 1 and self.covers(node, stores[0], tile))):
                    return None
                result[number] = replace(node, body=tuple(self._loads(x, copy) for x in node.body))
                if stores:
                    return result
            else:
                return None
        return result if touched == self.uses[tile] and readers else None

    def _loads(self, node: n.Node, copy: n.Copy) -> n.Node:
        def change(part: Expr) -> Expr:
            if not isinstance(part, Load) or part.source != copy.to.source:
                return part
            dtype = self.table[copy.source.source].dtype
            return cast(Load(copy.source.source, _index(copy.source, part.index), dtype), part.dtype)

        return rewrite_expressions(node, lambda e: rebuild(e, change))

    # --- writing ----------------------------------------------------------------------------------

    def written_in_place(self, nodes: list[n.Node], at: int) -> n.Node | None:
        """Return a loop and the copy of its result as one."""
        nest = nodes[at]
        copy = nodes[at + 1] if at + 1 < len(nodes) else None
        if (
            not isinstance(nest, n.Parallel)
            or not isinstance(copy, n.Copy)
            or len(nest.body) != 1
            or nest.in_step
        ):
            return None
        store, tile = nest.body[0], copy.source.source
        if not isinstance(store, n.Store) or store.target != tile or not self.covers(nest, store, tile):
            return None
        if not self.is_tile(copy.source) or not self.exists(copy.to, copy.source) or copy.dst is not None:
            return None
        if copy.src is not None or copy.to.source in {load.source for load in loads(store.value)}:
            return None
        here = [r for x in nodes[: at + 2] for y in n.walk((x,)) for _, r in n.regions(y) if r.source == tile]
        if len(here) != self.uses[tile] or not self._begins_new(nodes, tile):
            return None
        value = cast(store.value, self.table[tile].dtype)
        target = replace(store, target=copy.to.source, index=_index(copy.to, store.index), value=value)
        return replace(nest, body=(target,))

    def _begins_new(self, nodes: list[n.Node], tile: str) -> bool:
        """Return whether the first statement that touches a tile writes all of it, without reading it."""
        for node in nodes:
            regions = [(k, r) for x in n.walk((node,)) for k, r in n.regions(x) if r.source == tile]
            if not regions:
                continue
            if isinstance(node, (n.Copy, n.Fill)):
                return self.is_tile(node.to) and node.to.source == tile and len(regions) == 1
            store = node.body[0] if isinstance(node, n.Parallel) else None
            return (
                isinstance(node, n.Parallel)
                and isinstance(store, n.Store)
                and len(regions) == 1
                and self.covers(node, store, tile)
            )
        return True

    # --- shapes -----------------------------------------------------------------------------------

    def is_tile(self, region: n.Region) -> bool:
        """Return whether a region is all of a tile."""
        binding = self.table[region.source]
        plain = binding.base == region.source and region.source not in self.params
        return plain and region == n.whole(region.source, binding.shape)

    def covers(self, nest: n.Parallel, store: n.Store, tile: str) -> bool:
        """Return whether a loop writes every element of a tile, one in each iteration."""
        shape = tuple(constant(e) for e in nest.extents)
        return (
            store.target == tile
            and store.index == tuple(map(Symbol, nest.vars))
            and shape == self.table[tile].shape
        )

    def exists(self, region: n.Region, tile: n.Region) -> bool:
        """Return whether a region of a tensor, as large as the tile, lies inside for every unit."""
        binding = self.table[region.source]
        if region.source not in self.params:
            return False
        dtypes = binding.dtype, self.table[tile.source].dtype
        if dtypes[1] != "f32" or not is_float(dtypes[0]) or dtypes[0] not in ("f32", *NARROW):
            return False
        if [constant(e) for e in region.extents] != list(self.table[tile.source].shape):
            return False
        for dim, length in zip(region.dims, binding.shape, strict=True):
            size = 1 if dim.extent is None else constant(dim.extent) or 0
            found = self.unit.interval(dim.start)
            if found is None or found[0] < 0 or found[1] + size > length:
                return False
        return True


def _loops(program: Program) -> dict[str, tuple[int, int]]:
    """Return the bounds of loop variables that numbers give; a name of two loops has none."""
    found: dict[str, tuple[int, int]] = {}
    seen: set[str] = set()
    for node in n.walk(program.body):
        if isinstance(node, n.Loop):
            low, high = constant(node.start), constant(node.stop)
            if node.var not in seen and low is not None and high is not None and constant(node.step) == 1:
                found[node.var] = (low, max(high - 1, low))
            elif node.var in seen:
                found.pop(node.var, None)
            seen.add(node.var)
    return found


def _index(region: n.Region, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return the index in the tensor of an element of the region."""
    rest = iter(index)
    return tuple(
        d.start if d.extent is None else simplify(binary("+", d.start, next(rest))) for d in region.dims
    )
