"""The structure of scales and phases: which regions follow each other under one unit, and what each
touches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatile.ir import nodes as n
from megatile.ir.launch import ROOT
from megatile.ir.passes.hazards import accesses
from megatile.ir.program import Program, bindings


@dataclass(frozen=True)
class Phase:
    """One region: its scale, the scale of the unit around it, its number there, and the storages it touches.

    ``after`` are the numbers of earlier phases under the same unit whose data it needs or changes.
    """

    scale: str
    within: str
    number: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    after: tuple[int, ...]
    phases: tuple[Phase, ...] = ()


def phases(program: Program) -> tuple[Phase, ...]:
    """The phases of the launch, each with those inside it."""
    table = bindings(program)
    return tuple(_phases(program.body, ROOT, {name: b.base for name, b in table.items()}))


def _phases(body: tuple[n.Node, ...], within: str, base: dict[str, str]) -> Iterator[Phase]:
    found: list[Phase] = []
    for node in _regions(body):
        touched = accesses(node)
        reads = tuple(sorted({base[r.source] for r in touched.reads}))
        writes = tuple(sorted({base[r.source] for r in touched.writes}))
        after = tuple(p.number for p in found if _depends(p, reads, writes))
        inner = tuple(_phases(node.body, node.scale, base))
        found.append(Phase(node.scale, within, len(found), reads, writes, after, inner))
    yield from found


def _regions(body: tuple[n.Node, ...]) -> Iterator[n.Scale]:
    """Regions directly under one unit, through loops and branches."""
    for node in body:
        if isinstance(node, n.Scale):
            yield node
        else:
            for _, inner in n.bodies(node):
                yield from _regions(inner)


def _depends(earlier: Phase, reads: tuple[str, ...], writes: tuple[str, ...]) -> bool:
    before = set(earlier.writes)
    return bool(before & {*reads, *writes} or set(earlier.reads) & set(writes))
