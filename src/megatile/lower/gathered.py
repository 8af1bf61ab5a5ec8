"""Views whose owner function scatters indices: a statement works on a tile of the unit's own, into which the
unit's elements are gathered before and from which they go back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from megatile.core.expr import ONE, ZERO, Const, Expr, table
from megatile.core.placement import Owner
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.lower.commands import copy_block
from megatile.lower.errors import cannot
from megatile.lower.regions import Axis, Block
from megatile.lower.storage import Home
from megatile.lower.streams import AROUND, Frame

MOST = 64
"""Runs of a dimension that are written out."""
LEAVES = (n.Copy, n.Fill, n.Gemm, n.Reduce, n.Cumsum, n.Store, n.Parallel)


@contextmanager
def gathered(frame: Frame, node: n.Node) -> Iterator[None]:
    """Views of a statement that are no runs stand for tiles of the unit's own meanwhile."""
    names = _scattered(frame, node) if isinstance(node, LEAVES) else {}
    homes, before = frame.draft.homes, {}
    for name in names:
        binding = before[name] = homes.table[name]
        home = _tile(frame, name)
        homes.table[name] = replace(binding, base=home.name, views=(), shape=home.shape)
        homes.table[home.name] = replace(homes.table[name], name=home.name)
        for part, there in _pairs(frame, home, binding.base, binding.views[0]):
            copy_block(frame, part, there)
    yield
    for name, binding in before.items():
        home = homes.found[homes.table[name].base]
        homes.table[name] = binding
        for part, there in _pairs(frame, home, binding.base, binding.views[0]) if names[name] else ():
            copy_block(frame, there, part)


AROUND["statement"] = gathered


def _scattered(frame: Frame, node: n.Node) -> dict[str, bool]:
    """The names of such views in a statement, and whether it writes them."""
    found: dict[str, bool] = {}
    for m in n.walk((node,)):
        touched = [(region.source, kind != "read") for kind, region in n.regions(m)]
        for name, writes in touched:
            binding = frame.draft.homes.table.get(name)
            if binding is not None and any(_is_scattered(v) for v in binding.views):
                home = frame.draft.homes.found[binding.base]
                if home.tensor or len(binding.views) > 1:
                    continue  # the tensor's home is divided so, or it is refused where it is used
                found[name] = found.get(name, False) or writes
    return found


def _is_scattered(view: n.View) -> bool:
    layout = view.layout
    return isinstance(layout, Owner) and any(
        s and s[-1] - s[0] + 1 != len(s) for sets in layout.sets for s in sets
    )


def _tile(frame: Frame, name: str) -> Home:
    binding = frame.draft.homes.table[name]
    layout = binding.views[0].layout
    assert isinstance(layout, Owner)
    shape = tuple(max(len(unit[d]) for unit in layout.sets) for d in range(len(layout.sets[0])))
    return frame.draft.scratch(frame, shape, binding.dtype, "own")


def _pairs(frame: Frame, home: Home, base: str, view: n.View) -> Iterator[tuple[Block, Block]]:
    """Runs of the unit's own tile, and where they lie in the tile that is divided."""
    homes, layout = frame.draft.homes, view.layout
    assert isinstance(layout, Owner)
    there, launch = homes.found[base], homes.launch
    low = launch.depth(homes.table[base].scale) if homes.table[base].scale != ROOT else 0
    rank = frame.place.rank(low, launch.depth(view.scale))
    parts = [list(_runs(frame, [unit[d] for unit in layout.sets], rank)) for d in range(len(home.shape))]
    lead = frame.regions.leads(there, frame.place, False)[0]
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


def _runs(frame: Frame, sets: list[tuple[int, ...]], rank: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
    """Pieces of a dimension: where each begins in the unit's own tile and in the other, and its length."""
    if len({*sets}) == 1 and sets[0] == tuple(range(len(sets[0]))):
        yield ZERO, ZERO, Const(len(sets[0]))
        return
    most = max(len(s) for s in sets)
    if most > MOST:
        raise cannot(f"a view whose owner function scatters more than {MOST} indices", frame.node)
    for k in range(most):
        start = table([s[k] if k < len(s) else 0 for s in sets], rank)
        size = ONE if all(k < len(s) for s in sets) else table([int(k < len(s)) for s in sets], rank)
        yield Const(k), start, size
