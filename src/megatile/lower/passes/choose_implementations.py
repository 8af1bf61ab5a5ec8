"""What does each copy, product and reduction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.core.expr import ZERO, Expr, Symbol, binary, constant
from megatile.cost.implementations import Request
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Program
from megatile.lower.commands import choice_of, common_row, several_instances
from megatile.lower.levels import Level, Levels
from megatile.lower.storage import Homes
from megatile.lower.units import NotStatic, Place


@dataclass(frozen=True)
class ChooseImplementations:
    """Name what does each copy, product and reduction: the cheapest, or what ``impl=`` asks for.

    ``copy(t[0::64], A[k * 64::64])`` → ``copy(t[0::64], A[k * 64::64], impl="tma")``, with the prices of all
    that could do it as a comment. A put that goes to other nodes from some units becomes a branch:
    ``if (rank // 8 != peer // 8): copy(…, impl="nic") else: copy(…, impl="lsu")``. (Messages,
    ``impl="software_channel"``, are left as they are: only the Plan tells whether units send and receive in
    turn.)
    """

    machine: HDA
    name: str = "choose_implementations"

    def apply(self, program: Program) -> Program:
        homes = Homes(program, self.machine)
        levels = Levels(program, self.machine)
        body = _Chooser(self.machine, homes, levels).body(
            program.body, _Site(levels.first, levels.first.depth, Unit(program.launch))
        )
        return replace(program, body=body)


@dataclass(frozen=True)
class _Site:
    """Where a statement runs: the level of its instances, the depth of the unit, and whether a loop of the
    instance is around it."""

    level: Level
    depth: int
    unit: Unit
    looped: bool = False


class _Chooser:
    def __init__(self, machine: HDA, homes: Homes, levels: Levels):
        self.machine, self.homes, self.levels = machine, homes, levels
        self.several = several_instances(homes.launch, machine)

    def body(self, body: tuple[n.Node, ...], site: _Site) -> tuple[n.Node, ...]:
        result = []
        for node in body:
            result.append(self.statement(node, site))
            after = site.unit.after(node)
            if after is not site.unit:
                site = replace(site, unit=after)
        return tuple(result)

    def statement(self, node: n.Node, site: _Site) -> n.Node:
        if isinstance(node, n.Parallel):
            return node
        if isinstance(node, n.Alloc) and node.name not in self.homes.found:
            self.homes.tile(node, site.level.depth)
        request = _REQUESTS.get(type(node))
        if request is not None and node.impl != "software_channel":  # type: ignore[attr-defined]
            asked = request(self, node, site)
            across = self.across_nodes(node, site) if isinstance(node, n.Copy) else False
            if across is False:
                return _chosen(node, asked)
            far = _chosen(node, replace(asked, reach=self.machine.scale("node").name))
            if across is True:
                return far
            assert isinstance(node, n.Copy)
            near = _chosen(replace(node, impl=None) if node.impl == "nic" else node, asked)
            return n.If(across, (far,), (near,), span=node.span)
        return n.with_bodies(node, lambda part: self.body(part, self.inside(node, site)))

    def inside(self, node: n.Node, site: _Site) -> _Site:
        site = replace(site, unit=site.unit.within(node), looped=site.looped or isinstance(node, n.Loop))
        if not isinstance(node, n.Scale):
            return site
        scale = self.levels.child_scale(node, site.depth)
        depth = max(site.depth, self.homes.launch.depth(node.scale))
        if scale is None:
            return replace(site, depth=depth)
        return replace(site, level=self.levels.further[scale], depth=depth, looped=False)

    # --- what is asked of the machine -------------------------------------------------------------

    def copy(self, node: n.Copy, site: _Site) -> Request:
        to, source = self.homes.home(node.to.source), self.homes.home(node.source.source)
        reach, inside = None, True
        number = node.dst if node.dst is not None else node.src
        if number is not None:
            group = site.unit.group_of(node.scale)
            other = to if node.dst is not None else source
            reach = self.homes.launch.at(group[1])
            if not site.unit.is_itself(number, node.axis, group):
                reach, inside = self.reach(group), other.shared or group[0] >= other.depth
        rows = [
            common_row(h.dtype, self.sizes(r, h.lead), h.extents)
            for r, h in ((node.to, to), (node.source, source))
        ]
        return Request(
            "Copy", self.machine, site.level.scale, source.dtype, self.elements(node.to, site),
            memories=(source.memory, to.memory), reach=reach, inside=inside, row=math.gcd(*rows),
            ahead=site.looped or self.several,
        )  # fmt: skip

    def across_nodes(self, node: n.Copy, site: _Site) -> bool | Expr:
        """Whether a put or get between devices leaves its node; a condition where some units' do."""
        number, launch = node.src if node.dst is None else node.dst, self.homes.launch
        device = self.machine.scale("device").name
        each = self.machine.count(device, within=self.machine.scale("node").name)
        devices = launch.count(device)
        if number is None or devices <= each or devices != math.prod(launch.extents(device)):
            return False
        group = site.unit.group_of(node.scale)
        peer = site.unit.other(number, node.axis, node.scale).peer
        if launch.at(group[1]) != device or peer is None:
            return False
        across = binary("!=", binary("//", site.unit.rank(*group), each), binary("//", peer[0], each))
        place = Place(launch, (*[ZERO] * (launch.depth(device) - 1), Symbol("rank")))
        try:
            found = place.whole(across, {}).evaluate({"rank": np.arange(devices)})
        except (NotStatic, IndexError):  # loops or blocks decide it too
            return across
        return bool(np.all(found)) if np.all(found) or not np.any(found) else across

    def gemm(self, node: n.Gemm, site: _Site) -> Request:
        a, c = self.homes.home(node.a.source), self.homes.home(node.c.source)
        inner = node.a.extents[-2:][0 if node.transpose_a else 1]
        extents = tuple(constant(e) or 1 for e in (*node.c.extents[-2:], inner))
        return Request(
            "Gemm", self.machine, site.level.scale, a.dtype, self.elements(node.c, site),
            2 * math.prod(extents), extents, (a.memory, c.memory),
        )  # fmt: skip

    def reduce(self, node: n.Reduce, site: _Site) -> Request:
        source, elements = self.homes.home(node.source.source), self.elements(node.source, site)
        return Request(
            "Reduce", self.machine, site.level.scale, source.dtype, elements, elements,
            memories=(source.memory,),
        )  # fmt: skip

    def reach(self, group: tuple[int, int]) -> str:
        """The largest scale at which a unit of a group is another one than this."""
        scales = self.homes.launch.scales[slice(*group)]
        return next((s.name for s in scales if s.count > 1), scales[-1].name)

    @staticmethod
    def sizes(region: n.Region, lead: int) -> list[int | None]:
        """The extents of a region in its tile, with the leading one of slices; None: only the run tells."""
        return [1] * (lead > 1) + [1 if d.extent is None else constant(d.extent) for d in region.dims]

    @staticmethod
    def elements(region: n.Region, site: _Site) -> int:
        """Elements of a region; where they vary, the most."""
        total = 1
        for dim in region.dims:
            if dim.extent is None:
                continue
            found = [site.unit.interval(dim.extent)]
            if dim.limits is not None:
                low, high = dim.limits
                found.append(site.unit.interval(high - low))
            known = [limits[1] for limits in found if limits is not None]
            total *= max(0, min(known)) if known else 0
        return total


def _chosen(node: Any, request: Request) -> n.Node:
    choice = choice_of(request, node.impl, node.place)
    made: n.Node = replace(node, impl=choice.name or None, choice=choice)
    return made


_REQUESTS: dict[type[n.Node], Callable[[_Chooser, Any, _Site], Request]] = {
    n.Copy: _Chooser.copy,
    n.Gemm: _Chooser.gemm,
    n.Reduce: _Chooser.reduce,
}
