"""Rules about reductions over units that come too late, or too often: rows sent before they are reduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from megatile.core.expr import Binary, ceil_div, known, symbols, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes, footprint
from megatile.verdict.grid import added_to
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule


@rule("late reduction")
def late_reductions(study: Study) -> Iterator[Finding]:
    """Find rows that units exchange although each only needs their sum (or maximum)."""
    if study.lowered is None:
        return
    for one, times in _added_up_later(study.lowered.source):
        yield from study.finding(
            "late reduction", _fewer_bytes_ps(study, one, times), bound=True,
            how=f"Plan timed again with 1/{times} of the bytes in memory, and the {one.kind}'s time "
            "replaced by that of as many fewer bytes",
            bottleneck=f"{one.kind} of '{one.to[0].source}', which units then only add up",
            reason=f"each of {times} elements that a unit gets goes into one sum",
            step="add up at the sender, and send the sums",
            source=changes.source_line(one),
        )  # fmt: skip
    for one, reduce in _reduced(study.lowered.source):
        name = one.to[0].source
        yield from study.finding(
            "late reduction", study.program_ps(partial(_reduced_first, one=one, reduce=reduce)),
            f"program timed again with the reduction before the {one.kind}",
            bottleneck=f"{one.kind} of '{name}': every unit only reads its rows after they are reduced",
            reason=f"T.reduce_{reduce.op} is all that reads '{name}', along a dimension that each unit has "
            "whole",
            step=f"T.reduce_{reduce.op} of what the unit has first, then T.{one.kind} of its results",
            source=changes.source_line(one),
        )  # fmt: skip


@rule("late reduction")
def reduced_by_blocks(study: Study) -> Iterator[Finding]:
    """Find gathers of tensors that the blocks of every unit then reduce, all of it."""
    if study.lowered is None:
        return
    program = study.lowered.source
    for one, dim, loops, op in _reduced_by_blocks(program):
        count, name = program.launch.count(one.scale), bindings(program)[one.to[0].source].base
        parts = count if one.kind == "gather_view" else 1  # of a view, the collective names the unit's part
        size = (known(one.to[0].extents[dim]) or 1) * parts
        own = study.program_ps(partial(_own_rounds, loops=loops, count=count))
        gathered, reduced = (study.collective_ps(kind, one, share) for kind, share in (
            ("all_gather", float(parts)), ("all_reduce", parts / size)))  # fmt: skip
        yield from study.finding(
            "late reduction", (own or study.base_ps) - gathered + reduced,
            f"program timed again with 1/{count} of the rounds, and the all-gather's time replaced by "
            "that of an all-reduce of the results",
            bottleneck=f"all of '{name}' is gathered by every unit, which then reduces it",
            reason=f"T.reduce_{op} is all that reads it: {size} elements become one on every unit",
            step=f"T.reduce_{op} of the own part, then T.allreduce of the results",
            source=changes.source_line(one),
        )  # fmt: skip


def _reduced_by_blocks(program: Program) -> Iterator[tuple[n.Collective, int, list[n.Loop], str]]:
    """Yield all-gathers whose results are only read by copies of blocks to tiles that are reduced along the
    gathered dimension; with that, the loops that go along it, and what reduces."""
    table = bindings(program)
    readers: dict[str, list[n.Node]] = {}
    for node in n.walk(program.body):
        for kind, region in n.regions(node):
            if kind != "write" and not isinstance(node, n.Collective):
                readers.setdefault(table[region.source].base, []).append(node)
    for one in n.each(n.Collective, program.body):
        if one.kind not in ("allgather", "gather_view") or len(one.to) != 1:
            continue
        bound = table[one.to[0].source]
        dim = getattr(bound.views[-1].layout, "dim", 0) if one.kind == "gather_view" else one.dim
        every, names = readers.get(bound.base, []), set[str]()
        copies = [m for m in every if isinstance(m, n.Copy)]
        for copy in copies if len(copies) == len(every) else ():
            later = readers.get(copy.to.source, [])
            reduces = [m for m in later if isinstance(m, n.Reduce) and not m.clear and _along(copy, m, dim)]
            names |= {reduces[0].op} if reduces and len(reduces) == len(later) else {""}
        if len(names) == 1 and "" not in names:
            starts = {s for c in copies for s in symbols(c.source.dims[dim].start)}
            loops = [m for m in n.each(n.Loop, program.body) if m.var in starts]
            if loops:
                yield one, dim, loops, names.pop()


def _along(copy: n.Copy, reduce: n.Reduce, dim: int) -> bool:
    """Whether a tile that a copy fills is reduced along the dimension that is this one of the source."""
    kept = [at for at, d in enumerate(copy.source.dims) if d.extent is not None]
    return kept[reduce.dim % len(kept)] == dim if kept else False


def _own_rounds(program: Program, loops: list[n.Loop], count: int) -> Program:
    """Return the program with a unit's share of the rounds of some loops."""
    made: dict[int, tuple[n.Node, ...]] = {
        id(m): (replace(m, stop=m.start + ceil_div(m.stop - m.start, count)),) for m in loops
    }
    return changes.replaced(program, made)


def _added_up_later(program: Program) -> Iterator[tuple[n.Collective, int]]:
    """Exchanges whose results blocks copy to tiles that they only add up, with how many of their elements
    one sum takes."""
    table = bindings(program)
    readers: dict[str, list[n.Node]] = {}
    for node in n.walk(program.body):
        for kind, region in n.regions(node):
            if kind != "write" and added_to(node) != table[region.source].base:
                readers.setdefault(table[region.source].base, []).append(node)
    for one in n.each(n.Collective, program.body):
        exchanges = one.kind in ("allgather", "all_to_all") and len(one.to) == len(one.source) == 1
        tiles = readers.get(table[one.to[0].source].base, []) if exchanges else []
        fewer = list[int]()
        for copy in tiles:
            name = copy.to.source if isinstance(copy, n.Copy) and n.remote(copy) is None else ""
            for node in readers.get(name, [copy]):
                total = added_to(node)
                sizes = [prod(table[x].shape) for x in (name, total)] if name and total else [1, 1]
                fewer.append(sizes[0] // sizes[1])
        if fewer and min(fewer) > 1:
            yield one, min(fewer)


def _fewer_bytes_ps(study: Study, one: n.Collective, times: int) -> float | None:
    assert study.lowered is not None
    table = bindings(study.lowered.source)
    names = {table[r.source].base for r in (*one.to, *one.source)}

    def change(s: pm.Statement) -> pm.Statement:
        mine = isinstance(s, pm.Compute) and s.engine == "dma" and {s.write.tile, s.reads[0].tile} & names
        return footprint.scaled_read(s, 0, 1 / times) if mine else s  # type: ignore[arg-type]

    streams = tuple(replace(x, body=rewritten(x.body, change)) for x in study.plan.streams)
    ps = study.plan_ps(replace(study.plan, streams=streams))
    kind = n.PLANNER_NAMES[one.kind]
    less = study.collective_ps(kind, one) - study.collective_ps(kind, one, 1 / times)
    return None if ps is None else ps - less


def _reduced(program: Program) -> Iterator[tuple[n.Collective, n.Reduce]]:
    """All-gathers with the reduction that alone reads what they give, along another dimension; all-reduces
    with one that does the same."""
    for one in n.each(n.Collective, program.body):
        if one.kind not in ("allgather", "allreduce") or len(one.to) != 1 or len(one.source) != 1 or one.fn:
            continue
        every = list(n.walk(program.body))
        behind = every[next(at for at, m in enumerate(every) if m is one) + 1 :]
        readers = [
            m for m in behind for k, r in n.regions(m) if k != "write" and r.source == one.to[0].source
        ]
        reduce = readers[0] if len(readers) == 1 else None
        whole = isinstance(reduce, n.Reduce) and reduce.source == one.to[0] and reduce.clear
        along = reduce.dim % len(reduce.source.dims) if isinstance(reduce, n.Reduce) else None
        other = along != one.dim if one.kind == "allgather" else one.op == getattr(reduce, "op", "")
        if isinstance(reduce, n.Reduce) and whole and other:
            yield one, reduce


def _reduced_first(program: Program, one: n.Collective, reduce: n.Reduce) -> Program:
    along, table = reduce.dim % len(reduce.source.dims), bindings(program)
    if one.kind == "allreduce":
        after = replace(one, to=(reduce.to,), source=(reduce.to,))
        return changes.replaced(program, {id(one): (), id(reduce): (reduce, after)})
    shape = tuple(known(e) or 1 for d, e in enumerate(one.source[0].extents) if d != along)
    to = table[reduce.to.source]
    made = next(m for m in n.each(n.Alloc, program.body) if m.name == table[one.to[0].source].base)
    part = n.whole(f"{reduce.to.source}_part", shape)
    sent = replace(one, to=(reduce.to,), source=(part,), dim=one.dim - (along < one.dim))
    before = replace(made, name=part.source, shape=shape, dtype=to.dtype)
    own = replace(reduce, source=one.source[0], to=part)
    return changes.replaced(program, {id(one): (), id(reduce): (before, own, sent)})


@rule("collective in a loop")
def in_a_loop(study: Study) -> Iterator[Finding]:
    """Every iteration sums over the units what is then only added up."""
    if study.lowered is None:
        return
    found = list(_added_up(study.lowered.source))
    if found:
        loop, one, total = found[0]
        yield from study.finding(
            "collective in a loop", study.program_ps(partial(_after_loop, loop=loop, one=one, total=total)),
            "program timed again with one collective after the loop",
            bottleneck=f"a collective in every iteration of '{loop.var}', of what is then added up",
            reason=f"a sum of sums: '{one.to[0].source}' is only added to '{total}' after it",
            step=f"add up first, then one T.allreduce({total}) after the loop",
            source=changes.source_line(one),
        )  # fmt: skip


def _added_up(program: Program) -> Iterator[tuple[n.Loop, n.Collective, str]]:
    """All-reduces in loops whose result is read by sums alone, with the tile of the sums."""
    for loop in n.each(n.Loop, program.body):
        for one in loop.body:
            if isinstance(one, n.Collective) and one.kind == "allreduce" and len(one.to) == 1:
                totals = _totals(program, one, one.to[0].source)
                if len(totals) == 1 and None not in totals:
                    yield loop, one, totals.pop() or ""


def _totals(program: Program, one: n.Node, name: str, before: tuple[str, ...] = ()) -> set[str | None]:
    """Return the tiles to which all that reads a tile adds it, blocks by a tile of their own; None is among
    them where something else reads it."""
    table, found = bindings(program), set[str | None]()
    every = [(m, k, r) for m in n.walk(program.body) for k, r in n.regions(m) if m is not one]
    for node in dict.fromkeys(id(m) for m, k, r in every if r.source == name and k != "write"):
        reader = next(m for m, *_ in every if id(m) == node)
        if isinstance(reader, n.Store) and _adds(reader, name):
            mine = [(m, k) for m, k, r in every if isinstance(m, n.Copy) and r.source == reader.target]
            own = program.launch.is_private(table[reader.target].scale)
            kept = [m.to.source for m, k in mine if k == "read" and own]
            loaded = {m.source.source for m, k in mine if k == "write"}
            found |= {table[x].base if x in loaded else None for x in kept} if kept else {reader.target}
        elif (
            isinstance(reader, n.Copy)
            and n.remote(reader) is None
            and reader.to.source not in (*before, name)
        ):
            found |= _totals(program, one, reader.to.source, (*before, name)) or {None}
        elif isinstance(reader, n.AtomicRegion) and reader.op == "add" and reader.dst is None:
            found |= {table[reader.to.source].base}
        else:
            found |= {None}
    return found


def _adds(store: n.Store, name: str) -> bool:
    """Whether a store adds an element of a tile to its target."""
    value = store.value
    own = [p for p in walk(value) if isinstance(p, Load) and p.source == store.target]
    return isinstance(value, Binary) and value.operator == "+" and len(own) == 1 and store.target != name


def _after_loop(program: Program, loop: n.Loop, one: n.Collective, total: str) -> Program:
    bound = bindings(program)[total]
    region = n.whole(total, bound.shape)
    after = replace(one, to=(region,), source=(region,))
    inside = tuple(m for m in loop.body if m is not one)
    return changes.replaced(program, {id(loop): (replace(loop, body=inside), after)})
