"""Choose the implementation of each copy, product and reduction."""

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
from megatile.ir.program import Program
from megatile.lowering.commands import choice_of, common_row, several_instances
from megatile.lowering.passes.sites import Chooser, Site
from megatile.lowering.units import NotStatic, Place


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
        return _Chooser(program, self.machine).run()


class _Chooser(Chooser):
    def __init__(self, program: Program, machine: HDA):
        super().__init__(program, machine)
        self.several = several_instances(self.launch, machine)

    def chosen(self, node: n.Node, site: Site) -> n.Node | None:
        request = _REQUESTS.get(type(node))
        if request is None or node.impl == "software_channel":  # type: ignore[attr-defined]
            return None
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

    # --- what is asked of the machine -------------------------------------------------------------

    def copy(self, node: n.Copy, site: Site) -> Request:
        to, source = self.homes.home(node.to.source), self.homes.home(node.source.source)
        reach, inside = None, True
        number = node.dst if node.dst is not None else node.src
        if number is not None:
            group = site.unit.group_of(node.scale)
            other = to if node.dst is not None else source
            reach = self.launch.at(group[1])
            if not site.unit.is_itself(number, node.axis, group):
                reach, inside = self.reach(group), other.shared or group[0] >= other.depth
        rows = [
            common_row(h.dtype, self.sizes(r, h.lead), h.extents)
            for r, h in ((node.to, to), (node.source, source))
        ]
        return Request(
            "Copy", self.machine, site.level.scale, source.dtype, self.elements(node.to, site),
            memories=(source.memory, to.memory), reach=reach, inside=inside, row=math.gcd(*rows),
            ahead=site.looped or self.several, spread=to.spread or source.spread,
        )  # fmt: skip

    def across_nodes(self, node: n.Copy, site: Site) -> bool | Expr:
        """Return whether a put or get between devices leaves its node; a condition where some units' do."""
        number, launch = node.src if node.dst is None else node.dst, self.launch
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

    def gemm(self, node: n.Gemm, site: Site) -> Request:
        a, c = self.homes.home(node.a.source), self.homes.home(node.c.source)
        inner = node.a.extents[-2:][0 if node.transpose_a else 1]
        extents = tuple(constant(e) or 1 for e in (*node.c.extents[-2:], inner))
        return Request(
            "Gemm", self.machine, site.level.scale, a.dtype, self.elements(node.c, site),
            2 * math.prod(extents), extents, (a.memory, c.memory),
        )  # fmt: skip

    def reduce(self, node: n.Reduce, site: Site) -> Request:
        source, elements = self.homes.home(node.source.source), self.elements(node.source, site)
        return Request(
            "Reduce", self.machine, site.level.scale, source.dtype, elements, elements,
            memories=(source.memory,),
        )  # fmt: skip

    def reach(self, group: tuple[int, int]) -> str:
        """Return the largest scale at which a unit of a group is another one than this."""
        scales = self.launch.scales[slice(*group)]
        return next((s.name for s in scales if s.count > 1), scales[-1].name)

    @staticmethod
    def sizes(region: n.Region, lead: int) -> list[int | None]:
        """Return the extents of a region in its tile, with the leading one of slices; None: only the run
        tells."""
        return [1] * (lead > 1) + [1 if d.extent is None else constant(d.extent) for d in region.dims]

    @staticmethod
    def elements(region: n.Region, site: Site) -> int:
        """Return elements of a region; where they vary, the most."""
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


_REQUESTS: dict[type[n.Node], Callable[[_Chooser, Any, Site], Request]] = {
    n.Copy: _Chooser.copy,
    n.Gemm: _Chooser.gemm,
    n.Reduce: _Chooser.reduce,
}
