"""Choose the algorithm of each collective."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from megatile.core.expr import ONE, ZERO, Const, known
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.expr import Pick
from megatile.ir.program import Program
from megatile.lowering.buffers import Asked, Buffers
from megatile.lowering.elements import whole
from megatile.lowering.errors import cannot
from megatile.lowering.passes.sites import Chooser, Site
from megatile.lowering.regions import Axis, Block
from megatile.lowering.residency import hardware_units


@dataclass(frozen=True)
class ChooseCollectives:
    """Name the algorithm of each collective and what sends its messages: what the machine's library (NCCL,
    RCCL) does for these units and this size, or what ``algorithm=`` and ``impl=`` ask for.

    ``collective("allreduce", "device", …)`` → ``collective("allreduce", "device", …, algorithm="ring",
    impl="nccl")``. Where the machine describes no library, it is the fastest algorithm, sent by the units'
    own engines. Besides these there are ``shared`` (units inside one instance, which share its memory),
    ``multicast`` (the network spreads it), ``gets`` (every unit gets the parts of the others, where these are
    uneven or merged by a function) and ``local`` (one unit).
    """

    machine: HDA
    name: str = "choose_collectives"

    def apply(self, program: Program) -> Program:
        every = n.each(n.Collective, program.body)
        if all(node.algorithm in n.WITHOUT_LIBRARY for node in every):
            return program
        return _Chooser(program, self.machine).run()


class _Chooser(Chooser):
    def chosen(self, node: n.Node, site: Site) -> n.Node | None:
        if not isinstance(node, n.Collective) or node.algorithm in n.WITHOUT_LIBRARY:
            return None
        algorithm, impl = self.choice(node, site)
        return replace(node, algorithm=algorithm, impl=node.impl if impl is None else impl)

    def choice(self, node: n.Collective, site: Site) -> tuple[str, str | None]:
        """Return the algorithm, and what sends its messages, if not the units' own engines."""
        group = site.among(node.scale)
        if site.unit.group[1] != site.level.depth < group[1] and self.units(site.among()) > 1:
            if node.algorithm is not None:  # whichever it is, they share the instance's memory
                from megatile.lowering.library_plans import check_algorithm

                check_algorithm(node)
            return "shared", None
        size = self.units(group, node.axis)
        self.homes.gather(node, site.level.depth)
        if size == 1:
            return "local", None
        x, y = self.block(node.source[0], site), self.block(node.to[0], site)
        spreads = self.spreads(node) and not x.cut and not y.cut
        if node.impl == "multicast" and spreads:
            return "multicast", None

        def members() -> list[int]:
            return hardware_units(self.levels, site.level, site.first, group, node.axis)

        from megatile.lowering.library_plans import library_plan

        root, buffers = known(node.root), self.buffers(node, x, y, site, size)
        found = library_plan(Asked(self.machine, site.level.scale, node, size, members, root, buffers))
        if found is not None:
            return found.algorithm, found.impl
        return "multicast" if spreads else "gets", None

    def spreads(self, node: n.Collective) -> bool:
        """Return whether the network may spread what a root has, which only the run tells."""
        found = node.kind == "broadcast" and node.algorithm is None
        if node.impl == "multicast" and not found:
            raise cannot(f"T.{node.kind} with impl='multicast', which only spreads what one unit has,", node)
        return found

    def buffers(self, node: n.Collective, x: Block, y: Block, site: Site, size: int) -> Buffers | None:
        """Return what the library's algorithm reads and writes, if there is one block of each."""
        if len(node.to) > 1 or node.fn is not None:
            return None
        copies = self.copies(node.to[0], site)
        if node.kind == "gather_view":
            home = self.homes.gathered.get(self.homes.table[node.to[0].source].base)
            y, copies = (y, 0) if home is None else (whole(home), 1)
        return Buffers.of(node, x, y, size) if copies == 1 else None

    def copies(self, region: n.Region, site: Site) -> int:
        """Return how many slices of a tile a unit writes: those of all units below it that have one."""
        home = self.homes.home(region.source)
        inner = self.launch.scales[min(home.copy_depth, site.depth) : home.copy_depth]
        return 1 if home.lead == 1 else math.prod(s.count for s in inner)

    def block(self, region: n.Region, site: Site) -> Block:
        """Return a region as a block with the Program's own numbers, cut where it may reach over the edge."""
        home = self.homes.home(region.source)
        lead = (Axis(ZERO, ONE, ONE, kept=False),) if home.lead > 1 else ()
        axes = [
            self.axis(dim, site, length if home.tensor else None)
            for dim, length in zip(region.dims, home.shape, strict=True)
        ]
        return Block(home, (*lead, *axes))

    def axis(self, dim: n.Dim, site: Site, length: int | None) -> Axis:
        kept, size = dim.extent is not None, ONE if dim.extent is None else dim.extent
        cut = dim.limits is not None
        if isinstance(dim.start, Pick):
            cut = kept and not site.unit.is_inside(
                dim.start.index, size, Const(min(map(len, dim.start.sets)))
            )
        elif not kept and self.program.padded and length is not None:
            cut = not site.unit.is_inside(dim.start, ONE, Const(length))
        if not isinstance(size, Const):
            found = site.unit.interval(size)
            if found is not None and found[0] == found[1]:
                size = Const(found[0])
        return Axis(dim.start, size, size, kept=kept, cut=cut)
