"""Which statements of a body must keep their order: read after write, write after read, write after write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatile.core.expr import difference, known
from megatile.ir import nodes as n
from megatile.ir.program import Binding, Program, bindings


@dataclass(frozen=True)
class Hazard:
    """Statement ``later`` (by position in its body) must follow ``earlier``; ``kind`` is RAW, WAR or WAW."""

    kind: str
    earlier: int
    later: int
    storage: str


@dataclass(frozen=True)
class Accesses:
    """What a statement, with everything inside it, reads and writes: storages and their regions."""

    reads: tuple[n.Region, ...]
    writes: tuple[n.Region, ...]


def accesses(node: n.Node) -> Accesses:
    """All regions a statement touches, those in its body included."""
    read: list[n.Region] = []
    written: list[n.Region] = []
    for inner in n.walk((node,)):
        for kind, region in n.regions(inner):
            if kind in ("read", "update"):
                read.append(region)
            if kind in ("write", "update"):
                written.append(region)
    return Accesses(tuple(read), tuple(written))


def hazards(body: tuple[n.Node, ...], program: Program) -> Iterator[Hazard]:
    """All hazards between the statements of one body, nearest first for each later statement."""
    table = bindings(program)
    touched = [accesses(node) for node in body]
    for later, node in enumerate(touched):
        for earlier in range(later - 1, -1, -1):
            before = touched[earlier]
            for kind, left, right in (
                ("RAW", before.writes, node.reads),
                ("WAR", before.reads, node.writes),
                ("WAW", before.writes, node.writes),
            ):
                storage = _shared(left, right, table)
                if storage is not None:
                    yield Hazard(kind, earlier, later, storage)


def _shared(left: tuple[n.Region, ...], right: tuple[n.Region, ...], table: dict[str, Binding]) -> str | None:
    for a in left:
        for b in right:
            if table[a.source].base == table[b.source].base and may_overlap(a, b):
                return table[a.source].base
    return None


def may_overlap(a: n.Region, b: n.Region) -> bool:
    """False only if two regions of the same name surely have no element in common."""
    if a.source != b.source or a.along or b.along:
        return True
    for x, y in zip(a.dims, b.dims, strict=True):
        gap = known(difference(y.start, x.start))
        if gap is None:
            continue
        length_x = 1 if x.extent is None else known(x.extent)
        length_y = 1 if y.extent is None else known(y.extent)
        if (length_x is not None and gap >= length_x) or (length_y is not None and -gap >= length_y):
            return False
    return True
