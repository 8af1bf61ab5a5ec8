"""Choose which regions wait for which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.passes.unit import Unit
from megatile.ir.program import Binding, Program, bindings
from megatile.lowering.flags import Box, boxes_meet
from megatile.lowering.levels import Levels
from megatile.lowering.passes.sites import annotated

Access = tuple[str, Box]


@dataclass(frozen=True)
class Synchronise:
    """Number the regions that start instances of a device, and say which earlier ones each waits for.

    ``with scale("block"): a`` and ``with scale("block"): b`` → ``with scale("block", phase=1): a`` and
    ``with scale("block", phase=2, after=(1,)): b``, where b touches what a writes, or writes what
    a reads. Boxes of a tensor that have no element in common are different things.

    A region in a loop or branch, or whose units meet or signal, waits for all before it. No flag is placed
    here: flags, signals and waits stand between commands, also those of inlined collectives, so
    ``lowering/waits.py`` places them when the streams of the Plan have been written, at the finest grain
    that is safe: for the instances whose boxes a command touches, where it names them.
    """

    machine: HDA
    name: str = "synchronise"

    def apply(self, program: Program) -> Program:
        levels = Levels(program, self.machine)
        regions = [
            node for level, node in levels.walk(program.body)
            if level is levels.first and isinstance(node, n.ScaleRegion) and id(node) in levels.parts
        ]  # fmt: skip
        if len(regions) < 2:
            return annotated(program, {id(node): {"phase": 1, "after": ()} for node in regions})
        straight = {id(node) for node in n.walk(program.body, (n.Loop, n.If))}
        touched = [_Touched.of(node, program, id(node) in straight) for node in regions]
        changes = {}
        for number, (node, mine) in enumerate(zip(regions, touched, strict=True), 1):
            before = enumerate(touched[: number - 1], 1)
            after = tuple(k for k, one in before if mine.waits_for(one))
            changes[id(node)] = {"phase": number, "after": after}
        return annotated(program, changes)


@dataclass(frozen=True)
class _Touched:
    """Tensors and tiles that a region reads and writes; ``plain``: nothing else orders it among others."""

    reads: frozenset[Access]
    writes: frozenset[Access]
    plain: bool

    @classmethod
    def of(cls, region: n.ScaleRegion, program: Program, straight: bool) -> _Touched:
        table, inside = bindings(program), list(n.walk(region.body))
        every = list(_accesses((region,), Unit(program.launch), table))
        meets = any(
            isinstance(node, (n.Signal, n.Wait, n.Barrier, n.Collective)) or n.remote(node) is not None
            for node in inside
        )
        return cls(
            frozenset(one for kind, one in every if kind != "write"),
            frozenset(one for kind, one in every if kind != "read"),
            straight and not meets,
        )

    def waits_for(self, other: _Touched) -> bool:
        conflict = _overlap(self.writes, other.reads | other.writes) or _overlap(self.reads, other.writes)
        return conflict or not self.plain or not other.plain


def _overlap(some: frozenset[Access], others: frozenset[Access]) -> bool:
    return any(a[0] == b[0] and boxes_meet(a[1], b[1]) for a in some for b in others)


def _accesses(
    body: tuple[n.Node, ...], unit: Unit, table: Mapping[str, Binding]
) -> Iterator[tuple[str, Access]]:
    """Yield what statements and those inside them touch: the tensor or tile, and a box of it."""
    for node in body:
        there = unit.within(node) if isinstance(node, n.Parallel) else unit
        for kind, region in n.regions(node):
            yield kind, (table[region.source].base, tuple(_run(d, there) for d in region.dims))
        for _, inner in n.bodies(node):
            yield from _accesses(inner, unit.within(node), table)
        unit = unit.after(node)


def _run(dim: n.Dim, unit: Unit) -> tuple[int, int] | None:
    low, size = unit.interval(dim.start), (1, 1) if dim.extent is None else unit.interval(dim.extent)
    return None if low is None or size is None else (low[0], low[1] + max(0, size[1]))
