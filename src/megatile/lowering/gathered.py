"""Parts of tiles whose indices are no run: a statement works on a tile of the unit's own, into which its
elements are gathered before and from which they go back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from megatile.core.expr import ONE, ZERO, Const, Expr, rebuild, table
from megatile.ir import nodes as n
from megatile.ir.expr import Load, Pick
from megatile.ir.program import Binding
from megatile.lowering.commands import copy_block
from megatile.lowering.errors import cannot
from megatile.lowering.regions import Axis, Block
from megatile.lowering.storage import Home
from megatile.lowering.streams import AROUND, StreamScope

MAX_SCATTERED_INDICES = 64
"""Runs of a dimension that are written out."""
LEAVES = (n.Copy, n.Fill, n.Gemm, n.Reduce, n.Cumsum, n.Store, n.Parallel)


Picked = tuple[str, tuple[Pick, ...]]
"""A tile, and in every dimension the elements of it that a unit has."""


@contextmanager
def gathered(scope: StreamScope, node: n.Node) -> Iterator[n.Node]:
    """The statement with tiles of the unit's own in place of parts that are no runs."""
    found = _Gatherer(scope)
    shown = found.statement(node) if scope.state.facts.picks and isinstance(node, LEAVES) else node
    for key, home in found.tiles.items():
        for part, there in _pairs(scope, home, key):
            copy_block(scope, part, there)
    yield shown
    for key, home in found.tiles.items():
        for part, there in _pairs(scope, home, key) if key in found.written else ():
            copy_block(scope, there, part)


AROUND["statement"] = gathered


class _Gatherer:
    """Finds the parts of a statement that are no runs, and puts names of tiles in their place."""

    def __init__(self, scope: StreamScope):
        self.scope = scope
        self.tiles: dict[Picked, Home] = {}
        self.written: set[Picked] = set()

    def statement(self, node: n.Node) -> n.Node:
        for kind, region in n.regions(node):
            if kind != "read":
                self.written |= {self.key(region.source, tuple(d.start for d in region.dims))} - {None}  # type: ignore[arg-type]
        change: dict[str, Any] = {
            f.name: self.value(getattr(node, f.name)) for f in fields(node) if f.name != "span"
        }
        if isinstance(node, (n.Store, n.Atomic)):
            load = self.load(Load(node.target, node.index, "int"))
            change |= {"target": load.source, "index": load.index}
        return replace(node, **change)

    def value(self, value: Any) -> Any:
        if isinstance(value, n.Node):
            return self.statement(value)
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if isinstance(value, n.Region):
            load = self.load(Load(value.source, tuple(d.start for d in value.dims), "int"))
            dims = (replace(d, start=at) for d, at in zip(value.dims, load.index, strict=True))
            return replace(value, source=load.source, dims=tuple(dims))
        if isinstance(value, Expr):
            return rebuild(value, lambda part: self.load(part) if isinstance(part, Load) else part)
        return value

    def load(self, load: Load) -> Load:
        key = self.key(load.source, load.index)
        if key is None:
            return load
        if key not in self.tiles:
            self.tiles[key] = _tile(self.scope, key)
        return Load(self.tiles[key].name, tuple(p.index for p in load.index), load.dtype)  # type: ignore[attr-defined]

    def key(self, name: str, index: tuple[Expr, ...]) -> Picked | None:
        picks = tuple(replace(at, index=ZERO) for at in index if isinstance(at, Pick))
        if not picks or self.scope.state.homes.home(name).tensor:
            return None  # the tensor's home is divided so, or it is refused where it is used
        return name, picks


def _tile(scope: StreamScope, key: Picked) -> Home:
    name, picks = key
    binding = scope.state.homes.table[name]
    home = scope.state.scratch(scope, tuple(pick.width for pick in picks), binding.dtype, "own")
    scope.state.homes.table[home.name] = Binding(home.name, home.name, home.shape, home.dtype, binding.scale)
    return home


def _pairs(scope: StreamScope, home: Home, key: Picked) -> Iterator[tuple[Block, Block]]:
    """Yield runs of the unit's own tile, and where they lie in the tile that is divided."""
    name, picks = key
    there = scope.state.homes.home(name)
    parts = [list(_runs(scope, list(pick.sets), scope.whole(pick.row))) for pick in picks]
    lead = scope.regions.leads(there, scope.place, False)[0]
    for runs in _product(parts):
        mine = tuple(Axis(at, size, size) for at, _, size in runs)
        yield Block(home, mine), Block(there, (*lead, *(Axis(start, size, size) for _, start, size in runs)))


def _product(parts: list[list[tuple[Expr, Expr, Expr]]]) -> Iterator[tuple[tuple[Expr, Expr, Expr], ...]]:
    if not parts:
        yield ()
        return
    for rest in _product(parts[1:]):
        for run in parts[0]:
            yield (run, *rest)


def _runs(scope: StreamScope, sets: list[tuple[int, ...]], rank: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Pieces of a dimension: where each begins in the unit's own tile and in the other, and its length."""
    if len({*sets}) == 1 and sets[0] == tuple(range(len(sets[0]))):
        yield ZERO, ZERO, Const(len(sets[0]))
        return
    most = max(len(s) for s in sets)
    if most > MAX_SCATTERED_INDICES:
        raise cannot(
            f"a view whose owner function scatters more than {MAX_SCATTERED_INDICES} indices", scope.node
        )
    for k in range(most):
        start = table([s[k] if k < len(s) else 0 for s in sets], rank)
        size = ONE if all(k < len(s) for s in sets) else table([int(k < len(s)) for s in sets], rank)
        yield Const(k), start, size
