"""Rules about how devices share the work and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

from megatile.core.expr import Binary, known, walk
from megatile.core.placement import is_whole
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.program import Program, bindings
from megatile.verdict import changes
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


@rule("needless collective")
def needless_collectives(study: Study) -> Iterator[Finding]:
    """Find collectives of what is the same on all units already, and sums over units of which only the sum is
    read."""
    if study.lowered is None:
        return
    program = study.lowered.source
    for one, text, step in (*_repeated(program), *_summed_apart(program)):
        yield from study.finding(
            "needless collective", study.program_ps(partial(changes.without, nodes=[one])),
            "program timed again without it",
            bottleneck=f"a collective too many: T.{one.kind} of '{one.to[0].source}'", reason=text, step=step,
            source=changes.source_line(one),
        )  # fmt: skip


def _bodies(body: tuple[n.Node, ...]) -> Iterator[tuple[n.Node, ...]]:
    yield body
    for node in body:
        for _, inner in n.bodies(node):
            yield from _bodies(inner)


def _repeated(program: Program) -> Iterator[tuple[n.Collective, str, str]]:
    """Yield broadcasts, maxima and minima of what an earlier collective has made the same everywhere."""
    for body in _bodies(program.body):
        same: dict[n.Region, n.Collective] = {}
        for node in body:
            if isinstance(node, n.Collective) and len(node.to) == 1:
                before = same.get(node.to[0])
                again = node.kind == "broadcast" or (node.kind == "allreduce" and node.op in ("max", "min"))
                if before is not None and again and (before.scale, before.axis) == (node.scale, node.axis):
                    yield node, f"T.{before.kind} has given all units the same already", "leave it out"
            written = {r.source for m in n.walk((node,)) for k, r in n.regions(m) if k != "read"}
            same = {r: one for r, one in same.items() if r.source not in written}
            if isinstance(node, n.Collective) and node.kind in ("allreduce", "allgather", "broadcast"):
                same |= dict.fromkeys(node.to, node)


def _summed_apart(program: Program) -> Iterator[tuple[n.Collective, str, str]]:
    """Yield the second of two sums over units that are only read to be added up."""
    readers: dict[str, list[n.Node]] = {}
    for node in n.walk(program.body):
        for name in {r.source for k, r in n.regions(node) if k != "write"}:
            readers.setdefault(name, []).append(node)
    for body in _bodies(program.body):
        sums = [m for m in body if isinstance(m, n.Collective) and m.kind == "allreduce" and m.op == "sum"]
        for one, two in pairwise(sums):
            names = one.to[0].source, two.to[0].source
            apart = replace(two, to=one.to, source=one.source) == one and names[0] != names[1]
            after = [m for m in readers[names[0]] if m is not one and body.index(one) < _position(body, m)]
            others = [m for m in readers[names[1]] if m is not two and body.index(two) < _position(body, m)]
            stores = [m for m in after if isinstance(m, n.Store)]
            if apart and after == others == stores and stores and all(_only_added(m, names) for m in stores):
                yield (
                    two, f"what is read of '{names[0]}' and '{names[1]}' is their sum",
                    "add them up on each unit first, and T.allreduce the sum",
                )  # fmt: skip


def _position(body: tuple[n.Node, ...], node: n.Node) -> int:
    """Return the place in a body of the statement that has this one inside; -1: none has."""
    return next((at for at, m in enumerate(body) if any(x is node for x in n.walk((m,)))), -1)


def _only_added(store: n.Store, names: tuple[str, str]) -> bool:
    """Whether a value is a sum or difference of elements of two tiles, and of other values."""
    parts, found = [store.value], list[str]()
    while parts:
        part = parts.pop()
        if isinstance(part, Binary) and part.operator in "+-":
            parts += [part.left, part.right]
        elif isinstance(part, Load) and part.source in names:
            found.append(part.source)
        elif any(isinstance(p, Load) and p.source in names for p in walk(part)):
            return False
    return sorted(found) == sorted(names)


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
