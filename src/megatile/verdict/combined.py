"""Rule about atomics that a loop repeats on the same elements: they could be combined in a tile first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megatile.core.expr import Const, Symbol, binary, symbols
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

COMBINE = {"add": "+", "max": "max", "min": "min"}


@rule("repeated atomics")
def repeated_atomics(study: Study) -> Iterator[Finding]:
    """Find atomics whose elements are the same in every iteration of a loop."""
    if study.lowered is None:
        return
    found = list(_repeated(study.lowered.source))
    if found:
        loop, one = found[0]
        yield from study.finding(
            "repeated atomics", study.program_ps(combined_first),
            "program timed again with a sum in a tile and one atomic after the loop",
            bottleneck=f"repeated atomics: every iteration of '{loop.var}' changes the same elements of "
            f"'{one.to.source}'",
            reason=f"nothing in '{one.to.source}[…]' depends on '{loop.var}'; each is a round through memory",
            step=f"combine in a tile in the loop, then one T.atomic_{one.op} after it",
            source=changes.source_line(one),
        )  # fmt: skip


def _repeated(program: Program) -> Iterator[tuple[n.Loop, n.AtomicRegion]]:
    """Yield atomics of whole tiles directly in loops that change the same elements of a tensor each time."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for loop in n.each(n.Loop, program.body):
        inside = list(n.walk(loop.body))
        changing = {loop.var} | {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
        for one in loop.body:
            if not isinstance(one, n.AtomicRegion) or one.dst is not None or one.op not in COMBINE:
                continue
            base = table[one.to.source].base
            others = [r for m in inside if m is not one for _, r in n.regions(m)]
            alone = all(table[r.source].base != base for r in others)
            tile = table[one.source.source]
            whole = one.source == n.whole(tile.base, tile.shape)
            same = not any(symbols(e) & changing for e in one.to.expressions())
            if base in tensors and alone and whole and same:
                yield loop, one


def combined_first(program: Program) -> Program:
    """Return the program with such atomics after their loops, of a tile that adds up."""
    table = bindings(program)
    allocs = {m.name: m for m in n.each(n.Alloc, program.body)}
    found = {id(one): (loop, one) for loop, one in _repeated(program)}

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            mine = [one for loop, one in found.values() if loop is node]
            for one in mine:
                made = allocs[table[one.source.source].base]
                total = replace(made, name=f"{made.name}_total", versions=1)
                result += [total, n.Fill(n.whole(total.name, total.shape), Const(0), span=one.span)]
            if id(node) in found:
                result.append(_added(found[id(node)][1], allocs[table[node.source.source].base]))  # type: ignore[attr-defined]
            else:
                result.append(n.with_bodies(node, change))
            for one in mine:
                name, shape = f"{table[one.source.source].base}_total", table[one.source.source].shape
                result.append(replace(one, source=n.whole(name, shape)))
        return tuple(result)

    return replace(program, body=change(program.body)) if found else program


def _added(one: n.AtomicRegion, tile: n.Alloc) -> n.Node:
    """Return the elementwise code that combines a tile with what was added up before."""
    names = tuple(f"i{d}" for d in range(len(tile.shape)))
    index = tuple(map(Symbol, names))
    sides = [Load(name, index, tile.dtype) for name in (f"{tile.name}_total", tile.name)]
    store = n.Store(f"{tile.name}_total", index, binary(COMBINE[one.op], *sides), span=one.span)
    return n.Parallel(names, tuple(map(Const, tile.shape)), (store,), span=one.span)
