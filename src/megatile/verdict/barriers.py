"""Rule about barriers behind which nothing is read that another unit has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from megatile.core.expr import Binary, Const, Expr, Symbol, known, linear, substitute, symbols, walk
from megatile.core.placement import is_whole
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

MAX_ROUNDS = 9
"""Rounds of a loop in which what is written is followed to where it is read."""


@rule("barriers")
def barriers(study: Study) -> Iterator[Finding]:
    """Units meet though none needs what another has done."""
    if study.lowered is None:
        return
    program = study.lowered.source
    found = _needless(program)
    if found:
        repeated = {id(m) for loop in n.each(n.Loop, program.body) for m in n.walk(loop.body)}
        gone = set(map(id, found))
        needed = [m for m in n.each(n.Barrier, program.body) if id(m) not in gone and id(m) in repeated]
        in_loop = any(id(m) in repeated for m in found)
        keep = ", ".join(dict.fromkeys(changes.source_line(m).rpartition(":")[2] for m in needed))
        yield from study.finding(
            "barriers", study.program_ps(lambda p: changes.without(p, found)),
            f"program timed again without {'the others' if keep else 'the barriers'}",
            bound=in_loop and not keep,
            bottleneck="barriers: units meet in every iteration" if in_loop else
            "barriers: units meet between phases",
            reason=f"{study.share('control', 'channel'):.0%} of the critical path is waiting",
            step=f"keep the barrier of line {keep} alone: behind the others nothing is read that units write"
            if keep else "leave them out: nothing is read behind them that another unit writes"
            if not in_loop else
            "one barrier after the loop, or a signal and a wait between those that need each other",
            source=changes.source_line(found[0]),
        )  # fmt: skip


def _needless(program: Program) -> list[n.Node]:
    """Barriers, but those behind which something is read before the next one that another unit may have
    written before it."""
    found: dict[int, n.Node] = {}
    table, tensors = bindings(program), {p.name for p in program.params}
    once = n.Loop("serial", "", Const(0), Const(1), body=program.body)
    loops = list(n.each(n.Loop, program.body))
    repeated = {id(m) for loop in loops for m in n.walk(loop.body)}
    for loop in (*loops, once):
        inside = list(n.walk(loop.body))
        barriers = [
            m for m in inside if isinstance(m, n.Barrier) and (loop is not once or id(m) not in repeated)
        ]
        own = {  # parts of tensors that are divided among the units that meet
            name for name, b in table.items()
            if b.views and {m.scale for m in barriers} == {b.views[-1].scale}
            and not is_whole(b.views[-1].layout)
        }  # fmt: skip
        found |= {id(m): m for m in barriers}
        written, read = list[tuple[n.Node, n.Region]](), list[n.Region]()
        waiting: n.Node | None = None
        since = read_since = 0
        rounds = islice(_rounds(loop, inside), len(inside) if loop is once else None)
        for node, here in rounds:  # what a round writes may be read in the next
            far = getattr(node, "src", None) is not None
            for kind, region in here if waiting is not None else ():
                base = table[region.source].base
                others = [
                    r for writer, r in written
                    if kind != "write" and (
                        far or n.remote(writer) is not None or (base in tensors and r.source not in own)
                    )
                ]  # fmt: skip
                if kind != "read" and n.remote(node) is not None:  # others may still use what a put changes
                    others += read[: len(read) - read_since]
                    others += [r for _, r in written[: len(written) - since]] if loop is once else []
                if any(table[r.source].base == base and may_overlap(region, r) for r in others):
                    found.pop(id(waiting), None)
            if isinstance(node, n.Barrier):
                if waiting is not None and id(waiting) not in found:
                    written = written[-since:] if since else []
                    read = read[-read_since:] if read_since else []
                waiting, since, read_since = node, 0, 0
            else:
                mine = [(node, r) for kind, r in here if kind != "read"]
                reads = [r for kind, r in here if kind != "write"]
                written += mine
                read += reads
                since += len(mine)
                read_since += len(reads)
    return list(found.values())


def _rounds(loop: n.Loop, inside: list[n.Node]) -> Iterator[tuple[n.Node, list[tuple[str, n.Region]]]]:
    """Yield the statements of some rounds of a loop with their regions, until slots of buffers are used
    again; in later rounds by other names of all that the loop changes."""
    names = {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
    names |= {m.var for m in inside if isinstance(m, n.Loop)}
    slots = [
        known(p.right) or 1 for m in inside for e in n.expressions(m) for p in walk(e)
        if isinstance(p, Binary) and p.operator == "%" and loop.var in symbols(p)
    ]  # fmt: skip
    for number in range(min(MAX_ROUNDS, 1 + max(slots, default=1))):
        now: dict[str, Expr] = {name: Symbol(f"{name} of round {number}") for name in names}
        now[loop.var] = Symbol(loop.var) + loop.step * number
        for node in inside:
            yield node, [
                (kind, replace(r, dims=tuple(replace(d, start=substitute(d.start, now)) for d in r.dims)))
                for kind, r in n.regions(node)
            ]  # fmt: skip


def may_overlap(one: n.Region, other: n.Region) -> bool:
    """Whether two regions of a tile, of two units, may have elements in common."""
    if len(one.dims) != len(other.dims):
        return True
    for a, b in zip(one.dims, other.dims, strict=True):
        sizes = [1 if d.extent is None else known(d.extent) for d in (a, b)]
        apart = _apart(a.start, b.start)
        if apart is None or None in sizes:
            continue
        distance, modulus = apart
        if modulus and sizes == [1, 1] and distance % modulus:
            return False
        if not modulus and (sizes[0] <= distance or sizes[1] <= -distance):  # type: ignore[operator]
            return False
    return True


def _apart(one: Expr, other: Expr) -> tuple[int, int] | None:
    """Return how much further on the other place is, if that is the same for all units, and modulo what (0:
    nothing)."""
    if any(isinstance(p, (Coord, Rank, Load)) for e in (one, other) for p in walk(e)):
        return None
    modulus = 0
    if isinstance(one, Binary) and isinstance(other, Binary) and one.operator == other.operator == "%":
        modulus = known(one.right) or 0
        if modulus and known(other.right) == modulus:
            one, other = one.left, other.left
    terms, distance = linear(other - one)
    return None if any(terms.values()) else (distance, modulus)
