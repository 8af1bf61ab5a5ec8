"""Rules about where data are kept and in which type: far tiles, tiles of other units, wide tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from megatile.core.dtypes import itemsize
from megatile.core.expr import known, symbols, walk
from megatile.core.placement import share_length
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Rank
from megatile.ir.passes.driver import rewrite_nodes
from megatile.ir.program import Program, bindings, seen
from megatile.verdict import changes
from megatile.verdict.model import Finding
from megatile.verdict.study import OutOfBudget, Study, rule

NEAR = ("l1", "l0")


@rule("far tile")
def far_tiles(study: Study) -> Iterator[Finding]:
    """A block's own tile is in a memory farther away than it need be."""
    if study.lowered is None:
        return
    program, times = study.lowered.source, dict[tuple[n.Alloc, str], int]()
    for tile in _far(study, program):
        for level in NEAR:
            memory = study.hda.memory(level).name
            try:
                ps = (
                    study.program_ps(partial(_moved, name=tile.name, memory=memory))
                    if memory != tile.level
                    else None
                )
            except OutOfBudget:
                break
            if ps is not None:
                times[tile, memory] = ps
    if times:
        tile, memory = min(times, key=lambda key: times[key])
        yield from study.finding(
            "far tile", times[tile, memory], f"program timed again with '{tile.name}' in '{memory}'",
            bottleneck=f"a tile in the wrong memory: '{tile.name}' is in '{tile.level}'",
            reason=f"'{tile.name}' belongs to one {tile.scale}, which has '{memory}' nearer",
            step=f"T.alloc(…, level=\"{memory}\") for '{tile.name}'",
            source=changes.source_line(tile),
        )  # fmt: skip


def _far(study: Study, program: Program) -> list[n.Alloc]:
    """Tiles of dispatched units in memories above these, and accumulators that are not in the nearest."""
    far, nearest = study.hda.memory("l2").name, study.hda.memory("l0").name
    totals = {bindings(program)[g.c.source].base for g in n.each(n.Gemm, program.body)}
    private = (m for m in n.each(n.Alloc, program.body) if program.launch.is_private(m.scale) and not m.flag)
    return [m for m in private if m.level == far or (m.name in totals and m.level != nearest)]


def _moved(program: Program, name: str, memory: str) -> Program:
    change = lambda m: replace(m, level=memory) if isinstance(m, n.Alloc) and m.name == name else m  # noqa: E731
    return replace(program, body=rewrite_nodes(program.body, change))


@rule("remote loads")
def remote_loads(study: Study) -> Iterator[Finding]:
    """Blocks load the same tiles of another unit's memory, each over the links."""
    if study.lowered is None or study.plan.units < 2:
        return
    program = study.lowered.source
    found = _remote(program)
    if found:
        copy = found[0][1]
        name = bindings(program)[copy.source.source].base
        yield from study.finding(
            "remote loads", study.program_ps(partial(_fetched, level=study.hda.memory("l2").name)),
            "program timed again with one copy before the blocks",
            bottleneck=f"redundant messages: blocks load the same tiles of another unit's '{name}'",
            reason="what a copy loads does not depend on all coordinates of the block, so several blocks get "
            "the same bytes over the links",
            step=f"T.copy(local, {name}, src=…) once, before the blocks, to a tile in the unit's "
            "own memory; blocks load from that",
            source=changes.source_line(copy),
        )  # fmt: skip


def _remote(program: Program) -> list[tuple[n.ScaleRegion, n.Copy]]:
    """Return gets of blocks, each with its region, where several blocks get the same."""
    launch, shared = program.launch, changes.shared_loads(program, remote=True)
    table, found = bindings(program), list[tuple[n.ScaleRegion, n.Copy]]()
    for region in changes.regions_of_scale(program, launch.dispatch):
        assert isinstance(region, n.ScaleRegion)
        inside = list(n.walk(region.body))
        written = {table[name].base for name in n.written(region.body)}
        free = {m.var for m in inside if isinstance(m, n.Loop) and known(m.start) is not None}
        for copy in shared:
            if any(copy is m for m in inside) and copy.src is not None:
                bound = table[copy.source.source]
                here = any(isinstance(p, Coord) and p.scale == launch.dispatch for p in walk(copy.src))
                if not here and symbols(copy.src) <= free and bound.base not in written:
                    found.append((region, copy))
    return found


def _fetched(program: Program, level: str) -> Program:
    """Return the program whose blocks load tiles of other units from copies that are made before them: of one
    unit's, or of all units' where a loop of the blocks goes through these."""
    table, launch = bindings(program), program.launch
    before, made = dict[int, tuple[n.Node, ...]](), dict[int, tuple[n.Node, ...]]()
    names = dict[tuple[str, str], str]()
    for region, copy in _remote(program):
        assert copy.src is not None
        scale = copy.scale or launch.host
        units = launch.count(scale) if symbols(copy.src) else 0
        bound, key = table[copy.source.source], (copy.source.source, str(copy.src))
        if key not in names:
            names[key] = name = f"{bound.name}_local{len(names)}"
            path = (0,) * (launch.depth(bound.views[-1].scale) if bound.views else 0)
            own = tuple(map(share_length, seen(launch, bound.views, bound.shape, path)))
            shape = (units, *own) if units else own
            start = list[n.Node]()
            start.append(n.Alloc(name, shape, bound.dtype, level, launch.host, span=copy.span))
            whole = n.whole(bound.name, own)
            for unit in range(units):
                peer = (Rank(scale, launch.at(launch.depth(scale) - 1)) + unit) % units
                to = replace(n.whole(name, shape), dims=(n.Dim(peer), *n.whole(name, own).dims))
                start.append(n.Copy(to, whole, src=peer, scale=copy.scale, span=copy.span))
            if not units:
                start.append(
                    n.Copy(n.whole(name, shape), whole, src=copy.src, scale=copy.scale, span=copy.span)
                )
            before[id(region)] = (*before.get(id(region), (region,))[:-1], *start, region)
        dims = (n.Dim(copy.src), *copy.source.dims) if units else copy.source.dims
        source = replace(copy.source, source=names[key], dims=dims)
        made[id(copy)] = (replace(copy, source=source, src=None, scale=None),)
    return changes.replaced(changes.replaced(program, before), made) if made else program


@rule("wider than read")
def wider_than_read(study: Study) -> Iterator[Finding]:
    """A tensor is kept in a wider type than everything that reads it."""
    if study.lowered is None:
        return
    program = study.lowered.source
    names = _wider(program)
    if names:
        some = ", ".join(f"'{name}'" for name in names)
        dtype, verb = next(iter(names.values())), "is" if len(names) == 1 else "are"
        sent = [c for c in n.each(n.Collective, program.body) if len(c.to) == 1 and c.to[0].source in names]
        yield from study.finding(
            "wide messages" if sent else "wider than read", study.program_ps(partial(_narrow, names=names)),
            f"program timed again with {some} in {dtype}",
            bottleneck=f"wide messages: {some} {verb} sent, and then read as {dtype} alone" if sent else
            f"a wide tensor: {some} {verb} read as {dtype} alone",
            reason=f"every load of {some} converts it to {dtype}, so the other bytes are moved for nothing",
            step=f'convert to "{dtype}" before T.{sent[0].kind}: the results stay the same' if sent else
            f'{some} in "{dtype}": the results stay the same',
            source=changes.source_line(sent[0]) if sent else _line(program, names),
        )  # fmt: skip


def _line(program: Program, names: dict[str, str]) -> str:
    copies = (c for c in n.each(n.Copy, program.body) if bindings(program)[c.source.source].base in names)
    return changes.source_line(next(copies, None))


def _wider(program: Program) -> dict[str, str]:
    """Tensors and tiles in shared memories that are read by copies alone, all to one narrower type (tensors
    by copies to tiles: others are what callers want converted)."""
    table, tensors = bindings(program), {p.name for p in program.params}
    kept = tensors | {m.name for m in n.each(n.Alloc, program.body) if not program.launch.is_private(m.scale)}
    reads: dict[str, set[str]] = {}
    for node in n.walk(program.body):
        for access, region in n.regions(node):
            base = table[region.source].base
            if base in kept and access != "write":
                plain = isinstance(node, n.Copy) and not (
                    base in tensors and table[node.to.source].base in kept
                )
                reads.setdefault(base, set()).add(table[node.to.source].dtype if plain else "")  # type: ignore[attr-defined]
    found = {
        name: dtype
        for name, types in reads.items()
        for dtype in types
        if len(types) == 1 and dtype not in ("", "bool") and itemsize(dtype) < itemsize(table[name].dtype)
    }
    for one in n.each(n.Collective, program.body):  # what is read by nothing but such a collective
        ends = [table[r.source].base for r in (*one.to, *one.source)]
        if len(ends) == 2 and ends[0] in found and ends[1] in kept - tensors and reads[ends[1]] == {""}:
            readers = [m for m in n.walk(program.body) for k, r in n.regions(m)
                       if k != "write" and table[r.source].base == ends[1]]  # fmt: skip
            found |= {ends[1]: found[ends[0]]} if readers == [one] else {}
    return found


def _narrow(program: Program, names: dict[str, str]) -> Program:
    """Return the program with tensors and tiles in other types; what a collective sends is converted before
    it."""
    table = bindings(program)

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for node in body:
            if isinstance(node, n.Alloc) and node.name in names:
                node = replace(node, dtype=names[node.name])
            if isinstance(node, n.Collective) and len(node.to) == len(node.source) == 1:
                dtype, source = names.get(node.to[0].source), node.source[0]
                if dtype is not None and table[source.source].base not in names:
                    shape = tuple(known(e) or 1 for e in source.extents)
                    sent = n.whole(f"{source.source}_{dtype}", shape)
                    level = next(
                        m.level for m in n.each(n.Alloc, program.body) if m.name == node.to[0].source
                    )
                    result += [
                        n.Alloc(sent.source, shape, dtype, level, node.scale, span=node.span),
                        n.Copy(sent, source, span=node.span),
                    ]
                    node = replace(node, source=(sent,))
            result.append(n.with_bodies(node, change))
        return tuple(result)

    params = tuple(replace(p, dtype=names.get(p.name, p.dtype)) for p in program.params)
    return replace(program, params=params, body=change(program.body))
