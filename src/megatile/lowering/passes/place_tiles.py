"""Place tensors and tiles in memories, and choose how many versions a tile has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any

from megatile.core.expr import known
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.program import Program
from megatile.lowering.levels import Levels
from megatile.lowering.passes.sites import annotated
from megatile.lowering.storage import Home, Homes


@dataclass(frozen=True)
class PlaceTiles:
    """Say of every tensor and tile which memory holds it, whose it is, and in how many versions.

    ``A: f32[64]`` → ``A: f32[64] @ home("hbm", "device")``;
    ``t = alloc((8,), "f32", "shared", "block")`` → the same with ``versions=2`` where a pipelined loop fills
    it anew in each step (``for k in pipelined(0, 4, 1, stages=2, fresh=("t",))``), and with ``slices=2``
    where two units inside a block have a copy each.

    Versions are those that loops ask for; the Plan has as many of them as fit into the memory.
    """

    machine: HDA
    name: str = "place_tiles"

    def apply(self, program: Program) -> Program:
        homes = Homes(program, self.machine)
        tiles: list[n.Alloc] = []
        versions: dict[str, int] = {}
        change: dict[int, dict[str, Any]] = {}
        for level, node in Levels(program, self.machine).walk(program.body):
            if isinstance(node, n.Alloc):
                tiles.append(node)
                if node.name not in homes.found:
                    homes.tile(node, level.depth)
            elif isinstance(node, n.Loop) and node.kind == "pipelined" and node.stages > 1:
                fresh = tuple(streamed(homes, node, level.depth))
                change[id(node)] = {"fresh": fresh}
                versions |= {name: max(versions.get(name, 1), node.stages) for name in fresh}
        for tile in tiles:
            change[id(tile)] = {"versions": versions.get(tile.name, 1), "slices": homes.found[tile.name].lead}
        params = tuple(replace(p, home=self.home(homes, homes.found[p.name])) for p in program.params)
        return replace(annotated(program, change), params=params)

    @staticmethod
    def home(homes: Homes, home: Home) -> tuple[str, str]:
        return home.memory, ROOT if home.shared else homes.launch.at(home.depth)


def streamed(homes: Homes, loop: n.Loop, depth: int) -> Iterator[str]:
    """Yield tiles of a level's own that a pipelined loop fills anew in each iteration: with one copy, or with
    copies of parts that together are all of it. The first of them begins a new version; what changes such a
    tile later, in place, changes that version."""
    writers: dict[str, list[n.Node]] = {}
    for node in n.walk(loop.body):
        for kind, region in n.regions(node):
            if kind != "read":
                writers.setdefault(homes.table[region.source].base, []).append(node)
    for name, nodes in writers.items():
        home = homes.found.get(name)
        if home is None or home.tensor or home.depth != depth or home.lead > 1:
            continue
        copies = [m for m in nodes if isinstance(m, n.Copy) and _covers(m, homes)]
        first_of_all = len(copies) == 1 and nodes[0] is copies[0] and any(m is nodes[0] for m in loop.body)
        if (
            len(copies) == len(nodes)
            or (first_of_all and home.memory != homes.hda.memory("l0").name)
            or _parts_cover(name, nodes, loop, homes)
        ):
            yield name


def _covers(copy: n.Copy, homes: Homes) -> bool:
    """Return whether a copy from elsewhere fills the whole tile."""
    if copy.dst is not None or copy.src is not None:
        return False
    to, source = homes.table[copy.to.source], homes.table[copy.source.source]
    sizes = [known(d.extent) for d in copy.to.dims if d.extent is not None]
    if to.base == source.base or None in sizes or any(d.limits is not None for d in copy.to.dims):
        return False
    return sizes == list(homes.part_lengths(to))


def _parts_cover(name: str, writers: list[n.Node], loop: n.Loop, homes: Homes) -> bool:
    """Return whether the writers of a tile are copies of disjoint parts, together all of it, before any use
    of the tile in the loop."""
    boxes = [_part(m, homes) if any(m is own for own in loop.body) else None for m in writers]
    known_boxes = [box for box in boxes if box is not None]
    if len(known_boxes) < max(2, len(boxes)):
        return False
    for one, other in combinations(known_boxes, 2):
        if all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True)):
            return False
    whole = homes.table[name].shape
    if sum(prod(b - a for a, b in box) for box in known_boxes) != prod(whole):
        return False
    order = list(n.walk(loop.body))
    last = max(at for at, m in enumerate(order) if any(m is writer for writer in writers))
    reads = (r for m in order[:last] for kind, r in n.regions(m) if kind != "write")
    return all(homes.table[r.source].base != name for r in reads)


def _part(node: n.Node, homes: Homes) -> tuple[tuple[int, int], ...] | None:
    """Return the part of a tile that a copy from another one of this unit fills; None: it is not constant."""
    if not isinstance(node, n.Copy) or n.remote(node) is not None:
        return None
    to = homes.table[node.to.source]
    if to.base != node.to.source or to.base == homes.table[node.source.source].base:
        return None
    box = []
    for dim, length in zip(node.to.dims, to.shape, strict=True):
        start, size = known(dim.start), 1 if dim.extent is None else known(dim.extent)
        if start is None or size is None or dim.limits is not None or not 0 <= start <= length - size:
            return None
        box.append((start, start + size))
    return tuple(box)
