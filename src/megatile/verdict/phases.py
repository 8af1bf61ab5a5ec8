"""Rules about phases of blocks: steps that could stay on the chip, and work to be done once, before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from megatile.core.expr import Const, Symbol, eq, known, simplify, trips, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.fusion import elementwise
from megatile.verdict.model import Finding
from megatile.verdict.serial import SERIAL
from megatile.verdict.study import Study, rule

BORDER = 2.0
"""How many times the elements that a block stores it may load of them in the next step."""
Around = tuple[n.Node, ...]
Phases = tuple[n.Loop | None, list[n.ScaleRegion]]


@rule("steps through memory")
def steps_through_memory(study: Study) -> Iterator[Finding]:
    """Find phases that load what the same blocks have just stored, and little around it."""
    source = study.lowered.source if study.lowered is not None else None
    if source is None or changes.fusible(source) is not None or next(elementwise(study.plan), None):
        return
    for loop, regions in _phases(source):
        passed = _passed(source, regions)
        names = ", ".join(f"'{name}'" for name in sorted(passed))
        count = len(regions) * (len(trips(loop) or ()) if loop is not None else 1)
        if passed and count > 1:
            line = next(m for r in regions for m in _copies(r, passed, source) if m.to.source not in passed)
            ps, steps = _fastest(study, source, loop, regions, passed)
            yield from study.finding(
                "round trip", ps, f"program timed again with {steps} steps in one phase", bound=True,
                bottleneck=f"{count} steps through memory: each stores {names}, and the next loads it again",
                reason=f"a block loads what it has just stored, and a border; {study.busiest[0]} is busy "
                f"{study.busiest[1]:.0%}",
                step=f"{steps} steps in one phase (temporal blocking): load a part with a border as wide as "
                "these need, do them in tiles, store the last",
                source=changes.source_line(line),
            )  # fmt: skip


def _fastest(
    study: Study, source: Program, loop: n.Loop | None, regions: list[n.ScaleRegion], passed: set[str]
) -> tuple[float | None, int]:
    """Return the least time with several steps in one phase, as often as there are so many, and how many."""
    rounds, found = trips(loop) if loop is not None else None, list[tuple[float, int]]()
    every = len(rounds) if rounds is not None else len(regions)
    for some in [d for d in (every, 16, 8, 4, 2) if d <= every and not every % d]:
        short = source
        if loop is not None and rounds is not None:
            few = replace(loop, stop=loop.start + loop.step * some)
            body = tuple(_put(m, loop, few) for m in source.body)
            short = on_chip(replace(source, body=body), few, regions, passed)
        else:
            gone = list(regions[some:])
            short = on_chip(changes.without(source, list(gone)), None, regions[:some], passed)
        low = study.lower(short)
        steps = some * len(regions) if loop is not None else some
        more = _border_work(source, regions, passed, steps)
        ps = None if low is None else study.plan_ps(_more_work(low.plan, more))
        if ps is not None:
            found.append((study.launch_ps + (ps - study.launch_ps) * every / some, steps))
    return min(found, default=(None, 0))


def _border_work(program: Program, regions: list[n.ScaleRegion], passed: set[str], steps: int) -> float:
    """Return how many times the elements a step computes on average, with the borders of those after it."""
    table = bindings(program)
    copies = [m for region in regions for m in _copies(region, passed, program)]
    load = next(m for m in copies if table[m.source.source].base in passed)
    store = next(m for m in copies if table[m.to.source].base in passed)
    times = 1.0
    for a, b in zip(load.source.dims, store.to.dims, strict=True):
        wide, size = (1 if d.extent is None else known(d.extent) or 1 for d in (a, b))
        times *= (size + (steps - 1) * (wide - size) / 2) / size
    return times


def _more_work(plan: pm.Plan, times: float) -> pm.Plan:
    """Return the Plan whose computations have so many times the elements."""

    def change(s: pm.Statement) -> pm.Statement:
        if not isinstance(s, pm.Compute) or s.engine == "dma" or times <= 1:
            return s
        flops, nbytes = (round((known(e) or 0) * times) for e in (s.work.flops, s.work.bytes))
        return replace(s, work=replace(s.work, flops=Const(flops), bytes=Const(nbytes)))

    streams = tuple(replace(x, body=rewritten(x.body, change)) for x in plan.streams)
    return replace(plan, streams=streams)


def _put(node: n.Node, old: n.Node, new: n.Node) -> n.Node:
    """Return a statement with another one in place of one in it."""
    if node is old:
        return new
    return n.with_bodies(node, lambda body: tuple(_put(m, old, new) for m in body))


def _phases(program: Program) -> Iterator[Phases]:
    """Yield phases of blocks in a row, and such in a serial loop (with that)."""
    scale = program.launch.dispatch

    def visit(body: tuple[n.Node, ...], loop: n.Loop | None) -> Iterator[Phases]:
        regions = [m for m in body if isinstance(m, n.ScaleRegion) and m.scale == scale]
        alone = all(isinstance(m, (n.ScaleRegion, n.Hint, n.Barrier, n.View, n.Alloc)) for m in body)
        if regions and alone and (loop is not None or len(regions) > 1):
            yield loop, regions
        for node in body:
            inside = node if isinstance(node, n.Loop) and node.kind in SERIAL and trips(node) else None
            for _, inner in n.bodies(node) if node not in regions else ():
                yield from visit(inner, inside)

    yield from visit(program.body, None)


def _copies(region: n.ScaleRegion, tensors: set[str], program: Program) -> list[n.Copy]:
    """Return the copies of a phase, outside its loops, to and from tensors."""
    table = bindings(program)
    return [
        m for m in region.body
        if isinstance(m, n.Copy) and {table[m.to.source].base, table[m.source.source].base} & tensors
    ]  # fmt: skip


def _passed(program: Program, regions: list[n.ScaleRegion]) -> set[str]:
    """Return the tensors that blocks store and load again, each its own part with a border; none where some
    block reads what others have stored far away."""
    table, tensors = bindings(program), {p.name for p in program.params}
    written = {table[name].base for r in regions for name in n.written(r.body)} & tensors
    read = {
        table[r.source].base for region in regions for m in n.walk(region.body)
        for kind, r in n.regions(m) if kind != "write"
    }  # fmt: skip
    passed = written & read
    copies = [m for region in regions for m in _copies(region, passed, program)]
    touching = {
        id(m) for region in regions for m in n.walk(region.body)
        for _, r in n.regions(m) if table[r.source].base in passed
    }  # fmt: skip
    if touching != set(map(id, copies)) or any(n.remote(m) is not None for m in copies):
        return set()
    stores = [m.to for m in copies if table[m.to.source].base in passed]
    loads = [m.source for m in copies if table[m.source.source].base in passed]
    if not loads or not all(any(_around(load, store) for store in stores) for load in loads):
        return set()
    return passed


def _around(load: n.Region, store: n.Region) -> bool:
    """Whether a region is another one with a border."""
    if len(load.dims) != len(store.dims):
        return False
    times = 1.0
    for a, b in zip(load.dims, store.dims, strict=True):
        sizes = [1 if d.extent is None else known(d.extent) for d in (a, b)]
        if sizes == [1, 1]:  # the number of a buffer
            continue
        apart = known(simplify(a.start - b.start))
        if apart is None or sizes[0] is None or sizes[1] is None or abs(apart) > sizes[1] // 2:
            return False
        times *= sizes[0] / sizes[1]
    return times <= BORDER


def on_chip(program: Program, loop: n.Loop | None, regions: list[n.ScaleRegion], passed: set[str]) -> Program:
    """Return the program with phases as one: the first loads what they pass on, the last stores it, and in
    between tiles are copied."""
    table, tiles = bindings(program), dict[str, n.Alloc]()
    allocs, body = list[n.Node](), list[n.Node]()
    rounds = trips(loop) if loop is not None else None
    copies = [m for region in regions for m in _copies(region, passed, program)]
    stores = {table[m.to.source].base: m for m in copies if table[m.to.source].base in passed}
    stored = stores if loop is not None else {}  # by tensor: what the round, or phase, before has stored
    names = dict[str, str]()
    for number, region in enumerate(regions):
        left = list(tiles.values())
        for alloc in n.each(n.Alloc, region.body):
            same = next((a for a in left if _alike(a, alloc)), None)
            if same is None:
                allocs.append(alloc)
                tiles[alloc.name] = alloc
            else:
                left.remove(same)
                names[alloc.name] = same.name
        for node in region.body:
            made: tuple[n.Node, ...] = (node,)
            if isinstance(node, n.Copy) and table[node.source.source].base in passed:
                before = stored.get(table[node.source.source].base)
                local = (_passed_on(before, node),) if before is not None else ()
                if loop is not None and rounds is not None:
                    made = (n.If(eq(Symbol(loop.var), rounds[0]), (node,), local),)
                elif before is not None:
                    made = local
            elif isinstance(node, n.Copy) and table[node.to.source].base in passed:
                stored = stored | {table[node.to.source].base: node}
                last = number == len(regions) - 1
                if loop is not None and rounds is not None and last:
                    made = (n.If(eq(Symbol(loop.var), rounds[-1]), (node,)),)
                elif not last:
                    made = ()
            body += [m for m in made if not isinstance(m, n.Alloc)]
    first = next(m for m in copies if table[m.source.source].base in passed)
    count = len(regions) * (len(rounds) if rounds is not None else 1)
    wide = _with_borders(first, stores[table[first.source.source].base], count)
    body = [wide if m is first else _with_first(m, first, wide) for m in body]
    inside = tuple(body) if loop is None else (replace(loop, body=tuple(body)),)
    sizes = tuple(known(e) or 1 for e in wide.to.extents)
    allocs = [
        replace(a, shape=sizes) if isinstance(a, n.Alloc) and a.name == first.to.source else a for a in allocs
    ]
    fused = replace(regions[0], body=(*allocs, *changes.renamed(inside, names)))
    holder = regions[0] if loop is None else loop

    def change(part: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        kept = (m for m in part if m is holder or not any(m is r for r in regions))
        return tuple(fused if m is holder else n.with_bodies(m, change) for m in kept)

    return replace(program, body=change(program.body))


def _with_first(node: n.Node, first: n.Copy, wide: n.Copy) -> n.Node:
    """Return a statement whose first alternative is that load, with the other one."""
    return replace(node, body=(wide,)) if isinstance(node, n.If) and node.body == (first,) else node


def _with_borders(load: n.Copy, store: n.Copy, steps: int) -> n.Copy:
    """Return the load with a border as wide as all steps need."""
    grown = [
        (steps - 1) * ((known(a.extent) or 1) - (1 if b.extent is None else known(b.extent) or 1))
        for a, b in zip(load.source.dims, store.to.dims, strict=True) if a.extent is not None
    ]  # fmt: skip

    def wider(region: n.Region) -> n.Region:
        by = iter(grown)
        dims = (
            d if d.extent is None else replace(d, extent=d.extent + max(0, next(by))) for d in region.dims
        )
        return replace(region, dims=tuple(dims))

    return replace(load, to=wider(load.to), source=wider(load.source))


def _passed_on(store: n.Copy, load: n.Copy) -> n.Copy:
    """Return the copy of what a step stores to where the next one loads it."""
    pairs = [(a, b) for a, b in zip(load.source.dims, store.to.dims, strict=True) if a.extent is not None]
    inner = iter(pairs)
    dims = []
    for dim in load.to.dims:
        a, b = next(inner) if dim.extent is not None else (dim, dim)
        moved = b.extent is not None and known(b.extent) != 1
        start = simplify(dim.start + b.start - a.start) if moved else dim.start
        dims.append(replace(dim, start=start, extent=b.extent if moved else dim.extent))
    return n.Copy(replace(load.to, dims=tuple(dims)), store.source, span=load.span)


def _alike(one: n.Alloc, other: n.Alloc) -> bool:
    return (one.shape, one.dtype, one.level) == (other.shape, other.dtype, other.level)


@rule("the same in many blocks")
def same_in_blocks(study: Study) -> Iterator[Finding]:
    """Find what all blocks of a row or column of the grid compute again."""
    source = study.lowered.source if study.lowered is not None else None
    for found, times in shared_work(source) if source is not None else ():
        rest = study.program_ps(partial(without_shared, found=found))
        out = min(n.written((found[-1],)))
        yield from study.finding(
            "repeated work", None if rest is None else rest + (study.base_ps - rest) / times,
            f"program timed again without it, and 1/{times} of the time that this saves for doing it once",
            bound=True,
            bottleneck=f"repeated work: {times} blocks compute '{out}' of the same elements",
            reason=f"it does not depend on where these blocks differ; vector engines are busy "
            f"{study.result.use('vector') if 'vector' in study.result.busy else 0.0:.0%}",
            step=f"compute it once, in a phase before this one, and load '{out}' from memory here",
            source=changes.source_line(next((m for m in n.walk((found[0],)) if m.span is not None), None)),
        )  # fmt: skip


COMPUTES = (n.Parallel, n.Reduce, n.Cumsum, n.Gemm)


def shared_work(program: Program) -> Iterator[tuple[list[n.Node], int]]:
    """Yield what blocks compute of tensors and their own tiles alone that does not depend on an axis of the
    grid, with how many blocks do the same."""
    scale, extents = program.launch.dispatch, program.launch.extents(program.launch.dispatch)
    regions = changes.regions_of_scale(program, scale)
    table, tensors = bindings(program), {p.name for p in program.params}
    every = list(_statements(regions[0].body, ())) if len(regions) == 1 else []  # type: ignore[attr-defined]
    written = {table[name].base for name in n.written(program.body)} & tensors
    seen = set[frozenset[int]]()
    for axis in range(len(extents)):
        same = {
            id(m) for m, around in every
            if isinstance(m, (*COMPUTES, n.Copy, n.Fill)) and axis not in _axes((m, *around), scale)
            and n.remote(m) is None and not any(isinstance(x, n.Atomic) for x in n.walk((m,)))
        }  # fmt: skip
        accesses = [(id(m), kind, table[r.source].base) for m, _ in every for x in n.walk((m,))
                    for kind, r in n.regions(x)]  # fmt: skip
        while True:
            other = {base for at, kind, base in accesses if kind != "read" and at not in same} | written
            gone = {at for at, _, base in accesses if at in same and base in other}
            gone |= {at for at, kind, base in accesses if at in same and kind != "read" and base in tensors}
            if not gone:
                break
            same -= gone
        found: list[n.Node] = [m for m, _ in every if id(m) in same and isinstance(m, COMPUTES)]
        used = set[int]().union(*(_axes((m, *around), scale) for m, around in every if id(m) in same))
        times = prod(e for d, e in enumerate(extents) if d not in used)
        if found and times > 1 and frozenset(map(id, found)) not in seen:
            seen.add(frozenset(map(id, found)))
            yield found, times


def _statements(body: tuple[n.Node, ...], around: tuple[n.Node, ...]) -> Iterator[tuple[n.Node, Around]]:
    """Yield the statements of blocks with the loops and conditions around them."""
    for node in body:
        if isinstance(node, (n.Loop, n.If)):
            for _, inner in n.bodies(node):
                yield from _statements(inner, (*around, node))
        else:
            yield node, around


def _axes(nodes: tuple[n.Node, ...], scale: str) -> set[int]:
    """Return the axes of the grid that statements depend on (of loops and conditions: their bounds)."""
    inside = [m for node in nodes for m in ((node,) if isinstance(node, (n.Loop, n.If)) else n.walk((node,)))]
    parts = (p for m in inside for e in n.expressions(m) for p in walk(e))
    return {p.axis for p in parts if isinstance(p, Coord) and p.scale == scale}


def without_shared(program: Program, found: list[n.Node]) -> Program:
    """Return the program without some computations and the loads that nothing else reads, but as many of
    these as there are results of the same shape: these are loaded instead."""
    table, mine = bindings(program), set(map(id, found))
    loads = [
        loop for loop in n.each(n.Loop, program.body)
        if all(isinstance(m, n.Copy) or id(m) in mine for m in n.walk(loop.body, (n.Parallel,)))
        and any(id(m) in mine for m in loop.body)
    ]  # fmt: skip
    left = changes.without(program, [*found, *loads])
    reads = {table[r.source].base for m in n.walk(left.body) for kind, r in n.regions(m) if kind != "write"}
    made = {table[name].base for m in found for name in n.written((m,))}
    results, unread = [table[name].shape for name in made & reads], list[n.Node]()
    for m in n.each(n.Copy, left.body):
        shape = table[m.to.source].shape
        if table[m.to.source].base in reads | made | {p.name for p in program.params}:
            continue
        if shape in results:
            results.remove(shape)
        else:
            unread.append(m)
    return changes.without(left, unread)
