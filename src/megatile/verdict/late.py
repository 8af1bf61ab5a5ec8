"""Rule about messages that begin later than they could: behind work or messages that they do not need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from megatile.core.expr import known
from megatile.ir import nodes as n
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
from megatile.verdict.barriers import may_overlap
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

Body = tuple[n.Node, ...]


@rule("late messages")
def late_messages(study: Study) -> Iterator[Finding]:
    """Find puts behind the work of blocks whose results they do not send, or behind waiting for what they do
    not send on."""
    if study.lowered is None or study.plan.units < 2:
        return
    found = list(_late(study.lowered.source))
    if found:
        put, work = found[0]
        name, waits = put.source.source, not _works(work)
        yield from study.finding(
            "late messages", study.program_ps(_sent_early), "program timed again with puts before the "
            + ("waiting" if waits else "work"),
            bottleneck=f"a chain of units: each sends '{name}' only after it has heard from another" if waits
            else f"exposed communication: '{name}' is sent after work that does not change it",
            reason=f"line {_line(work)} waits for a message, but none changes '{name}'" if waits else
            f"line {_line(work)} only reads '{name}', and the put goes to another part than is read there",
            step=f"T.copy(…, dst=…) of '{name}' (and its signal) before line {_line(work)}: "
            + ("all units send at the same time" if waits else "it travels while blocks work"),
            source=changes.source_line(put),
        )  # fmt: skip


def _line(node: n.Node) -> str:
    return changes.source_line(node).rpartition(":")[2]


def _late(program: Program) -> Iterator[tuple[n.Copy, n.Node]]:
    """Yield puts with the work, or the waiting, before them that they could go before."""
    table = _Program(program)
    for body in _bodies(program.body):
        for at, node in enumerate(body):
            place = table.place(body, at)
            if place < at:
                put = next(m for m in n.walk((node,)) if isinstance(m, n.Copy))
                between = body[place:at]
                work = [m for m in between if _works(m)] or [m for m in between if _waits(m)]
                yield put, work[0]


def _bodies(body: Body) -> Iterator[Body]:
    yield body
    for node in body:
        for _, inner in n.bodies(node):
            yield from _bodies(inner)


def _works(node: n.Node) -> bool:
    return isinstance(node, (n.ScaleRegion, n.Gemm, n.Parallel, n.Reduce))


def _leaves(node: n.Node) -> list[n.Node]:
    return [m for m in n.walk((node,)) if not isinstance(m, n.If)]


def _waits(node: n.Node) -> bool:
    """Whether a statement (perhaps under a condition) does nothing but wait."""
    return all(isinstance(m, n.Wait) for m in _leaves(node))


def _signals(node: n.Node) -> bool:
    return all(isinstance(m, n.Signal) for m in _leaves(node))


class _Program:
    """Where the puts of a program could be."""

    def __init__(self, program: Program) -> None:
        self.table = bindings(program)
        self.landing = {
            self.table[m.to.source].base for m in n.each(n.Copy, program.body) if m.dst is not None
        }
        """What messages come to: other units change it."""
        after, others = set[str](), set[str]()
        for body in _bodies(program.body):
            for before, node in pairwise((None, *body)):
                if isinstance(node, n.Signal):
                    sent = isinstance(before, (n.Copy, n.Signal)) and before.dst is not None
                    (after if sent else others).add(node.flag)
        self.arrivals = after - others
        """Flags that say that a message is there, not that there is room for one."""

    def place(self, body: Body, at: int) -> int:
        """Return where a put (perhaps under a condition, with its signal) could be instead: before work, or
        waiting, in the same body."""
        every = _leaves(body[at])
        puts = [m for m in every if isinstance(m, n.Copy) and m.dst is not None]
        if not puts or len(puts) + sum(isinstance(m, n.Signal) for m in every) < len(every):
            return at
        sources = {self.table[m.source.source].base for m in puts}
        targets = {m.to for m in puts}
        names = {self.table[r.source].base for r in targets}
        signals = len(puts) < len(every) or _signals(body[min(at + 1, len(body) - 1)])
        place, best = at, at
        while place > 0:
            before = body[place - 1]
            inside = [(kind, r) for m in n.walk((before,)) for kind, r in n.regions(m)]
            moved = isinstance(before, n.Copy) and before.dst is not None
            writes = {self.table[r.source].base for kind, r in inside if kind != "read"}
            reads = {r for kind, r in inside if kind == "read" and self.table[r.source].base in names}
            if (writes & (sources | names) and not moved) or any(_same(r, t) for r in reads for t in targets):
                break
            if isinstance(before, (n.Let, n.ReadScalar, n.Collective, n.Signal)):
                break
            waits = [m for m in n.walk((before,)) if isinstance(m, n.Wait)]
            if waits and (
                not signals or not _waits(before) or sources & self.landing
                or any(m.flag not in self.arrivals for m in waits)
            ):  # fmt: skip
                break
            place -= 1
            best = place if waits or _works(before) else best
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
    table = _Program(program)

    def change(body: Body) -> Body:
        order = [n.with_bodies(node, change) for node in body]
        shift = 0
        for at in range(len(body)):
            place = table.place(body, at)
            if place < at:
                behind = at + 1
                while behind < len(body) and _signals(body[behind]):
                    behind += 1
                order[place + shift : behind] = order[at:behind] + order[place + shift : at]
                shift += behind - at
        kept = [b for a, b in pairwise((None, *order)) if not (isinstance(a, n.Barrier) and a == b)]
        return tuple(m for m in kept if m is not None)

    return replace(program, body=change(program.body))
