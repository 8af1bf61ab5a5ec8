"""Rule about messages that begin later than they could: behind work that they need nothing of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from megatile.core.expr import known
from megatile.ir import nodes as n
from megatile.ir.program import Binding, Program, bindings
from megatile.verdict import changes
from megatile.verdict.barriers import may_overlap
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

Body = tuple[n.Node, ...]


@rule("late messages")
def late_messages(study: Study) -> Iterator[Finding]:
    """Find puts behind the work of blocks whose results they do not send."""
    if study.lowered is None or study.plan.units < 2:
        return
    found = list(_late(study.lowered.source))
    if found:
        put, work = found[0]
        yield from study.finding(
            "late messages", study.program_ps(_sent_early), "program timed again with puts before the work",
            bottleneck=f"exposed communication: '{put.source.source}' is sent after work that does not "
            "change it",
            reason=f"line {_line(work)} only reads '{put.source.source}', and the put goes to another part "
            "than is read there",
            step=f"T.copy(…, dst=…) of '{put.source.source}' before line {_line(work)}: it travels while "
            "blocks work",
            source=changes.source_line(put),
        )  # fmt: skip


def _line(node: n.Node) -> str:
    return changes.source_line(node).rpartition(":")[2]


def _late(program: Program) -> Iterator[tuple[n.Copy, n.Node]]:
    """Yield puts with the work before them that they could go before."""
    table = bindings(program)
    for body in _bodies(program.body):
        for at, node in enumerate(body):
            place = _place(body, at, table)
            if place < at:
                put = next(m for m in n.walk((node,)) if isinstance(m, n.Copy))
                yield put, next(m for m in body[place:at] if _works(m))


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for node in body:
        for _, inner in n.bodies(node):
            yield from _bodies(inner)


def _works(node: n.Node) -> bool:
    return isinstance(node, (n.ScaleRegion, n.Gemm, n.Parallel, n.Reduce))


def _place(body: Body, at: int, table: dict[str, Binding]) -> int:
    """Return where a put (perhaps under a condition) could be instead: before work in the same body."""
    puts = [m for m in n.walk((body[at],)) if not isinstance(m, n.If)]
    if not puts or not all(isinstance(m, n.Copy) and m.dst is not None for m in puts):
        return at
    sources = {table[m.source.source].base for m in puts if isinstance(m, n.Copy)}
    targets = {m.to for m in puts if isinstance(m, n.Copy)}
    names = {table[r.source].base for r in targets}
    place, best = at, at
    while place > 0:
        before = body[place - 1]
        inside = [(kind, r) for m in n.walk((before,)) for kind, r in n.regions(m)]
        moved = isinstance(before, n.Copy) and before.dst is not None
        writes = {table[r.source].base for kind, r in inside if kind != "read"}
        reads = {r for kind, r in inside if kind == "read" and table[r.source].base in names}
        if (writes & (sources | names) and not moved) or any(_same(r, t) for r in reads for t in targets):
            break
        if isinstance(before, (n.Let, n.ReadScalar, n.Collective, n.Signal, n.Wait)):
            break
        place -= 1
        best = place if _works(before) else best
    return best


def _same(one: n.Region, other: n.Region) -> bool:
    """Whether two regions may be one part: no indices of one element set them apart."""
    first = [
        r.dims[0]
        for r in (one, other)
        if r.dims and (r.dims[0].extent is None or known(r.dims[0].extent) == 1)
    ]
    return (len(first) < 2 or first[0].start == first[1].start) and may_overlap(one, other)


def _sent_early(program: Program) -> Program:
    table = bindings(program)

    def change(body: Body) -> Body:
        order = [n.with_bodies(node, change) for node in body]
        shift = 0
        for at in range(len(body)):
            place = _place(body, at, table)
            if place < at:
                order.insert(place + shift, order.pop(at))
                shift += 1
        kept = [b for a, b in pairwise((None, *order)) if not (isinstance(a, n.Barrier) and a == b)]
        return tuple(m for m in kept if m is not None)

    return replace(program, body=change(program.body))
