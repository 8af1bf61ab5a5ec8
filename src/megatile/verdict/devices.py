"""Rules about how devices share the work and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

from megatile.core.expr import Binary, ceil_div, known, symbols, walk
from megatile.core.placement import is_whole
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes, footprint
from megatile.verdict.grid import added_to
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule


@rule("duplicate work")
def duplicates(study: Study) -> Iterator[Finding]:
    """Every device computes the same blocks."""
    if study.lowered is None or not _alike(study.lowered.source):
        return
    program, devices = study.lowered.source, study.lowered.source.launch.devices
    regions = changes.regions_of_scale(program, program.launch.dispatch)
    yield from study.finding(
        "duplicate work", study.program_ps(partial(_divided, parts=devices)),
        f"program timed again with 1/{devices} of the blocks on every device",
        bottleneck=f"duplicate work: all {devices} devices compute the same blocks",
        reason="neither loads, loops nor results depend on the device, and all tensors are whole on each",
        step="give every device its part: T.view(…, layout=T.FullRow) of one operand and of the result, with "
        "as many times fewer blocks; T.allgather if all devices need all of it",
        source=changes.source_line(regions[0]),
    )  # fmt: skip


def _alike(program: Program) -> bool:
    """Whether the blocks of every device do the same."""
    launch, table = program.launch, bindings(program)
    regions = changes.regions_of_scale(program, launch.dispatch)
    if launch.devices < 2 or not regions or launch.resident:
        return False
    if any(isinstance(m, n.Collective) or n.remote(m) for m in n.walk(program.body)):
        return False
    tensors = {p.name for p in program.params}
    for node in n.walk(tuple(regions)):
        for _, region in n.regions(node):
            bound = table[region.source]
            shared = bound.base in tensors or not launch.is_private(bound.scale)
            if shared and (bound.base not in tensors or not all(is_whole(v.layout) for v in bound.views)):
                return False
        for part in (p for e in n.expressions(node) for p in walk(e)):
            if isinstance(part, (Coord, Rank)) and launch.depth(part.scale) < launch.depth(launch.dispatch):
                return False
            if isinstance(part, Rank) and launch.depth(part.within) < launch.depth(launch.host):
                return False
    return True


def _divided(program: Program, parts: int) -> Program:
    """Return the program with that many times fewer blocks on every device."""
    launch = program.launch
    at = launch.depth(launch.dispatch) - 1
    extents = list(launch.scales[at].extents)
    axis = next((d for d in reversed(range(len(extents))) if extents[d] % parts == 0), None)
    if axis is None:
        return program
    extents[axis] //= parts
    scale = replace(launch.scales[at], extents=tuple(extents))
    scales = (*launch.scales[:at], scale, *launch.scales[at + 1 :])
    return replace(program, launch=replace(launch, scales=scales))


@rule("nested sums")
def nested_sums(study: Study) -> Iterator[Finding]:
    """A tensor is summed within groups and then, whole, across them."""
    if study.lowered is None:
        return
    found = list(_nested(study.lowered.source))
    if found:
        inner, outer = found[0]
        name, count = inner.to[0].source, study.lowered.source.launch.count(inner.scale, outer.scale)
        yield from study.finding(
            "nested sums", study.program_ps(_scattered),
            f"program timed again with a reduce-scatter, an all-reduce of 1/{count} and an all-gather",
            bottleneck=f"'{name}' is summed across {outer.scale}s whole, by every {inner.scale}",
            reason=f"all {count} {inner.scale}s of a {outer.scale} have the same sum, and each sends it",
            step=f"T.reduce_scatter(part, {name}); T.allreduce(part, scale=\"{outer.scale}\"); "
            f"T.allgather({name}, part): 1/{count} of the bytes between {outer.scale}s",
            source=changes.source_line(outer),
        )  # fmt: skip


def _nested(program: Program) -> Iterator[tuple[n.Collective, n.Collective]]:
    """Two all-reduces of one tensor in a row, the second over larger units than the first, or vice versa."""

    def visit(body: tuple[n.Node, ...]) -> Iterator[tuple[n.Collective, n.Collective]]:
        for one, two in pairwise(body):
            if isinstance(one, n.Collective) and isinstance(two, n.Collective):
                same = one.kind == two.kind == "allreduce" and one.to == two.to == one.source == two.source
                depths = [program.launch.depth(c.scale) for c in (one, two)]
                if (
                    same
                    and len(one.to) == 1
                    and one.fn is None
                    and one.axis == two.axis
                    and depths[0] != depths[1]
                ):
                    yield (one, two) if depths[0] > depths[1] else (two, one)
        for node in body:
            for _, inner in n.bodies(node):
                yield from visit(inner)

    yield from visit(program.body)


def _scattered(program: Program) -> Program:
    """Return the program with a reduce-scatter, a sum of parts and an all-gather for nested sums."""
    inner, outer = next(_nested(program))
    region = inner.to[0]
    count = program.launch.count(inner.scale, outer.scale)
    sizes = [known(d.extent) if d.extent is not None else 1 for d in region.dims]
    at = next((d for d, size in enumerate(sizes) if size and size % count == 0), None)
    bound = bindings(program)[region.source]
    if at is None or None in sizes:
        return program
    shape = tuple(int(size or 1) // (count if d == at else 1) for d, size in enumerate(sizes))
    level = next((m.level for m in n.each(n.Alloc, program.body) if m.name == bound.base), "hbm")
    part = n.whole(f"{region.source}_part", shape)
    made: tuple[n.Node, ...] = (
        n.Alloc(part.source, shape, bound.dtype, level, inner.scale, span=inner.span),
        replace(inner, kind="reduce_scatter", to=(part,), source=(region,), dim=at),
        replace(outer, to=(part,), source=(part,)),
        replace(inner, kind="allgather", to=(region,), source=(part,), dim=at),
    )
    return changes.replaced(program, {id(inner): made, id(outer): ()})


@rule("nested gathers")
def nested_gathers(study: Study) -> Iterator[Finding]:
    """Units gather within their group, and then each gets the other groups' results, which all in it need."""
    if study.lowered is None:
        return
    for first, second in _gathers(study.lowered.source):
        count = study.lowered.source.launch.count(first.scale, second.scale)
        yield from study.finding(
            "nested gathers", study.program_ps(partial(_outer_first, first=first, second=second)),
            f"program timed again with the gather between {second.scale}s first",
            bottleneck=f"every {first.scale} gathers all that the other {second.scale}s have gathered",
            reason=f"the same bytes come to a {second.scale} {count} times, once for each {first.scale}",
            step=f'T.allgather(part, x, scale="{second.scale}") first: 1/{count} of the bytes between '
            f"{second.scale}s; then T.allgather(…, part)",
            source=changes.source_line(second),
        )  # fmt: skip


def _gathers(program: Program) -> Iterator[tuple[n.Collective, n.Collective]]:
    """All-gathers in a row: of a part within a group, and of the result, which nothing else reads, across
    larger groups."""
    launch = program.launch
    every = [c for c in n.each(n.Collective, program.body) if c.kind == "allgather" and c.axis is None]
    for first, second in pairwise(every):
        name = first.to[0].source
        reads = [r for m in n.walk(program.body) for k, r in n.regions(m) if k == "read" and r.source == name]
        inner = launch.depth(first.scale) > launch.depth(second.scale)
        if inner and second.source == first.to and reads == [*second.source]:
            yield first, second


def _outer_first(program: Program, first: n.Collective, second: n.Collective) -> Program:
    source, table = first.source[0], bindings(program)
    count = program.launch.count(second.scale)
    shape = [known(e) or 1 for e in source.extents]
    shape[second.dim] *= count
    part = n.whole(f"{first.to[0].source}_across", tuple(shape))
    made = next(m for m in n.each(n.Alloc, program.body) if m.name == table[first.to[0].source].base)
    between: tuple[n.Node, ...] = (
        replace(made, name=part.source, shape=tuple(shape)),
        replace(second, to=(part,), source=(source,)),
        replace(first, to=second.to, source=(part,)),
    )
    return changes.replaced(program, {id(first): (), id(second): between})


@rule("gathered by a sum")
def gathered_by_sums(study: Study) -> Iterator[Finding]:
    """Every unit adds its part to zeros, so that all have all parts."""
    if study.lowered is None:
        return
    for one in _sums_of_parts(study.lowered.source):
        saved = study.collective_ps("all_reduce", one) - study.collective_ps("all_gather", one)
        yield from study.finding(
            "collective by hand", study.base_ps - saved,
            "the all-reduce's time replaced by that of an all-gather of the same tensor",
            bottleneck=f"an all-gather by T.allreduce: '{one.to[0].source}' is zero but for the unit's part",
            reason="a sum with zeros sends every part twice",
            step=f"T.allgather({one.to[0].source}, part)", source=changes.source_line(one),
        )  # fmt: skip


def _sums_of_parts(program: Program) -> Iterator[n.Collective]:
    """All-reduces of tiles that are cleared and then get one part, at a place of the unit's rank."""
    for one in n.each(n.Collective, program.body):
        name, count = one.to[0].source, program.launch.count(one.scale)
        writes = [(m, r) for m in n.walk(program.body) for kind, r in n.regions(m)
                  if kind != "read" and r.source == name and m is not one]  # fmt: skip
        zeros = [m for m, _ in writes if isinstance(m, n.Fill) and known(m.value) == 0]
        parts = [r for m, r in writes if isinstance(m, n.Copy) and n.remote(m) is None]
        if one.kind != "allreduce" or len(writes) != 2 or len(zeros) != 1 or len(parts) != 1 or count < 2:
            continue
        sizes = [[known(e) or 1 for e in r.extents] for r in (parts[0], one.to[0])]
        ranks = any(isinstance(p, Rank) for e in parts[0].expressions() for p in walk(e))
        if ranks and prod(sizes[0]) * count == prod(sizes[1]):
            yield one


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
            "program timed again with the reduction before the all-gather",
            bottleneck=f"an all-gather of '{name}', of which every unit only reads reduced rows",
            reason=f"T.reduce_{reduce.op} is all that reads '{name}', along a dimension that each part has "
            "whole",
            step=f"T.reduce_{reduce.op} of the own part first, then T.allgather of its results",
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
    """All-gathers with the reduction that alone reads what they give, along another dimension."""
    for one in n.each(n.Collective, program.body):
        if one.kind != "allgather" or len(one.to) != 1 or len(one.source) != 1:
            continue
        readers = [m for m in n.walk(program.body) for k, r in n.regions(m)
                   if k != "write" and r.source == one.to[0].source]  # fmt: skip
        reduce = readers[0] if len(readers) == 1 else None
        whole = isinstance(reduce, n.Reduce) and reduce.source == one.to[0] and reduce.clear
        if isinstance(reduce, n.Reduce) and whole and reduce.dim % len(reduce.source.dims) != one.dim:
            yield one, reduce


def _reduced_first(program: Program, one: n.Collective, reduce: n.Reduce) -> Program:
    along, table = reduce.dim % len(reduce.source.dims), bindings(program)
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
            if not isinstance(one, n.Collective) or one.kind != "allreduce" or len(one.to) != 1:
                continue
            name, readers = one.to[0].source, list[n.Node]()
            for node in n.walk(program.body):
                if node is not one and any(
                    r.source == name and kind != "write" for kind, r in n.regions(node)
                ):
                    readers.append(node)
            totals = {m.target for m in readers if isinstance(m, n.Store) and _adds(m, name)}
            if len(totals) == 1 and all(isinstance(m, n.Store) and _adds(m, name) for m in readers):
                yield loop, one, totals.pop()


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
