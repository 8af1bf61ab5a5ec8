"""Units in TileLang's words: ranks, the grid, threads; and which part of a tensor each rank has."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from megatile.core.expr import Const, Expr, Symbol, rebuild, simplify
from megatile.core.placement import Shard
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank, loads
from megatile.ir.launch import ROOT, Launch
from megatile.ir.program import Program, base_name
from megatile.targets.common.errors import CompileError

DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u64": "uint64",
    "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool", "int": "int32", "float": "float32",
}  # fmt: skip


def dtype(name: str) -> str:
    if name not in DTYPES:
        raise CompileError(
            f"TileLang has no element type for '{name}'", advice="use f32, f16, bf16 or integers"
        )
    return DTYPES[name]


class Units:
    """Ranks and coordinates of a launch as expressions of ``T.get_rank()``, the block and the thread."""

    def __init__(self, launch: Launch):
        self.launch = launch
        depth = launch.depth("device") if any(s.name == "device" for s in launch.scales) else 0
        self.above = [s for s in launch.scales[:depth] if s.count > 1]
        """Scales whose units are ranks, largest first."""
        self.ranks = math.prod(s.count for s in self.above)
        between = [s for s in launch.scales[depth : launch.depth("block") - 1] if s.count > 1]
        if len(between) > 1:
            raise CompileError(
                f"a launch of '{between[0].name}' and '{between[1].name}' has no counterpart in TileLang",
                advice="use clusters and blocks",
            )
        self.between = between[0] if between else None
        block = launch.extents("block")
        outer = self.between.extents if self.between else ()
        dims = max(len(block), len(outer))
        self.inner = block + (1,) * (dims - len(block))
        outer += (1,) * (dims - len(outer))
        self.grid = tuple(a * b for a, b in zip(outer, self.inner, strict=True))
        self.cluster = self.inner if self.between else ()
        """Blocks of a cluster."""
        self.group: int | None = None
        """The warp group whose role is being written."""

    def plain(self, expr: Expr) -> Expr:
        """Return an expression without ranks and coordinates."""

        def changed(node: Expr) -> Expr:
            if isinstance(node, Coord):
                return self.coordinate(node.scale, node.axis)
            return self.rank(node) if isinstance(node, Rank) else node

        return simplify(rebuild(expr, changed))

    def rank(self, expr: Rank) -> Expr:
        if expr.within == "block" and expr.scale in ("thread", "warp"):
            return Symbol("@thread") if expr.scale == "thread" else Symbol("@thread") // 32
        found: Expr = Const(0)
        for scale in self.launch.scales[self.launch.depth(expr.within) : self.launch.depth(expr.scale)]:
            below = 1
            index: Expr = Const(0)
            for axis, extent in enumerate(scale.extents):
                index = index + self.coordinate(scale.name, axis) * below
                below *= extent
            found = found * scale.count + index
        return simplify(found)

    def coordinate(self, scale: str, axis: int) -> Expr:
        extents = self.launch.extents(scale)
        if math.prod(extents) == 1 or extents[axis] == 1:
            return Const(0)
        if scale in [s.name for s in self.above]:
            return self._of_rank(scale, axis)
        if scale == "block":
            here: Expr = Symbol(f"@{axis}")
            return here % self.inner[axis] if self.between else here
        if self.between is not None and scale == self.between.name:
            return Symbol(f"@{axis}") // self.inner[axis] if self.inner[axis] > 1 else Symbol(f"@{axis}")
        if scale == "warpgroup" and self.group is not None:
            return Const(self.group)
        if scale == "thread":
            return Symbol("@thread") % 32
        raise CompileError(f"the rank at scale '{scale}' is unknown here", advice="use blocks")

    def _of_rank(self, scale: str, axis: int) -> Expr:
        names = [s.name for s in self.above]
        number = names.index(scale)
        below = math.prod(s.count for s in self.above[number + 1 :])
        extents = self.above[number].extents
        found: Expr = Symbol("@rank") // below if below > 1 else Symbol("@rank")
        found = found // math.prod(extents[:axis]) if axis else found
        last = number == 0 and axis == len(extents) - 1
        return found if last else found % extents[axis]

    def absolute(self, peer: Expr, scale: str, within: str, axis: int | None) -> Expr:
        """Return the rank of a peer: a unit of ``scale`` inside the same unit of ``within``."""
        mine: Expr = Rank(scale, within)
        if axis is not None:
            extents = self.launch.grid(scale, within)
            step = math.prod(extents[:axis])
            peer = mine + (peer - mine // step % extents[axis]) * step
        step = math.prod(s.count for s in self.above[self._position(scale) + 1 :])
        group = self.launch.count(scale, within) * step
        if step == 1 and group == self.ranks:
            return peer
        return simplify(Symbol("@rank") + (peer - mine) * step)

    def _position(self, scale: str) -> int:
        names = [s.name for s in self.above]
        return names.index(scale) if scale in names else len(names) - 1


class Places:
    """What each rank holds of the tensors: a part with indices of its own, or the whole."""

    def __init__(self, program: Program, units: Units):
        self.units = units
        self.parts: dict[str, tuple[int, int]] = {}
        """The divided dimension of a tensor, and its extent on one rank."""
        if units.ranks == 1:
            return
        used = {region.source for node in n.walk(program.body) for _, region in n.regions(node)}
        used |= {e.source for node in n.walk(program.body) for e in _loads(node)}
        peers = {
            base_name((node.to if node.dst is not None else node.source).source)
            for node in n.walk(program.body)
            if isinstance(node, n.Copy) and (node.dst is not None or node.src is not None)
        }
        for p in program.params:
            layouts = {chain[0].layout for chain in p.parts if chain and chain[0].scale == "device"}
            divided = next(iter(layouts)) if len(layouts) == 1 else None
            if p.name in used or not isinstance(divided, Shard) or len(units.above) > 1:
                continue
            extent = p.shape[divided.dim]
            plain = divided.axis is None and divided.order == "contiguous" and p.name not in peers
            if plain and isinstance(extent, int) and extent % units.ranks == 0:
                self.parts[p.name] = divided.dim, extent // units.ranks

    def divided(self, name: str) -> int | None:
        return self.parts[name][0] if name in self.parts else None

    def shape(self, source: str, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        if base_name(source) not in self.parts:
            return shape
        dim, extent = self.parts[base_name(source)]
        return (*shape[:dim], extent, *shape[dim + 1 :])

    def local(self, source: str, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return an index in what this rank holds."""
        if base_name(source) not in self.parts:
            return index
        dim, extent = self.parts[base_name(source)]
        moved = simplify(index[dim] - Rank("device", ROOT) * extent)
        return (*index[:dim], moved, *index[dim + 1 :])

    def region(self, region: n.Region) -> n.Region:
        if base_name(region.source) not in self.parts:
            return region
        dim, extent = self.parts[base_name(region.source)]
        base = Rank("device", ROOT) * extent
        one = region.dims[dim]
        limits = one.limits and (simplify(one.limits[0] - base), simplify(one.limits[1] - base))
        dims = list(region.dims)
        dims[dim] = replace(one, start=simplify(one.start - base), limits=limits)
        return replace(region, source=base_name(region.source), dims=tuple(dims))


def _loads(node: n.Node) -> list[Load]:
    return [one for e in n.expressions(node) for one in loads(e)]
