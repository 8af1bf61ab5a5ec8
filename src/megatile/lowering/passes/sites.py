"""Where each statement of a Program runs, for passes that choose what does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program
from megatile.lowering.levels import Levels, LoweredLevel
from megatile.lowering.storage import Homes


@dataclass(frozen=True)
class Site:
    """Where a statement runs: the level of its instances, the first of those of its region, the depth of the
    unit, and whether a loop of the instance is around it."""

    level: LoweredLevel
    depth: int
    unit: Unit
    first: int = 0
    looped: bool = False

    def among(self, scale: str | None = None) -> tuple[int, int]:
        """Return the depths between which the units of the innermost region, or of that of a scale, are
        counted: in their instance where they are units inside it."""
        low, high = self.unit.group_of(scale)
        return (max(low, self.level.depth) if high > self.level.depth else low), high


class Chooser:
    """Rewrites statements (``chosen``), each at its `Site`; tiles have homes after their ``alloc``."""

    def __init__(self, program: Program, machine: HDA):
        self.program, self.machine, self.launch = program, machine, program.launch
        self.homes, self.levels = Homes(program, machine), Levels(program, machine)

    def run(self) -> Program:
        first = self.levels.first
        return replace(
            self.program, body=self.body(self.program.body, Site(first, first.depth, Unit(self.launch)))
        )

    def chosen(self, node: n.Node, site: Site) -> n.Node | None:
        """Return the statement with what does it; None: there is nothing to choose."""
        raise NotImplementedError

    def body(self, body: tuple[n.Node, ...], site: Site) -> tuple[n.Node, ...]:
        result = []
        for node in body:
            result.append(self.statement(node, site))
            after = site.unit.after(node)
            if after is not site.unit:
                site = replace(site, unit=after)
        return tuple(result)

    def statement(self, node: n.Node, site: Site) -> n.Node:
        if isinstance(node, n.Parallel):
            return node
        if isinstance(node, n.Alloc) and node.name not in self.homes.found:
            self.homes.tile(node, site.level.depth)
        chosen = self.chosen(node, site)
        if chosen is not None:
            return chosen
        return n.with_bodies(node, lambda part: self.body(part, self.inside(node, site)))

    def inside(self, node: n.Node, site: Site) -> Site:
        site = replace(site, unit=site.unit.within(node), looped=site.looped or isinstance(node, n.Loop))
        if not isinstance(node, n.ScaleRegion):
            return site
        scale = self.levels.child_scale(node, site.depth)
        depth = max(site.depth, self.launch.depth(node.scale))
        if scale is None:
            return replace(site, depth=depth)
        first = self.levels.parts[id(node)].first
        return replace(site, level=self.levels.further[scale], depth=depth, first=first, looped=False)

    def units(self, group: tuple[int, int], axis: int | None = None) -> int:
        """Return how many units of a group act together (along ``axis``)."""
        grid = self.launch.grid(self.launch.at(group[1]), self.launch.at(group[0]))
        return math.prod(grid) if axis is None else grid[axis]


def annotated(program: Program, change: Mapping[int, Mapping[str, Any]]) -> Program:
    """Return the Program with other fields of statements, by their ``id``."""

    def body(nodes: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        return tuple(map(statement, nodes))

    def statement(node: n.Node) -> n.Node:
        new = n.with_bodies(node, body)
        return replace(new, **change[id(node)]) if id(node) in change else new

    return replace(program, body=body(program.body)) if change else program
