"""Rules about phases of blocks: steps that could stay on the chip, and work to be done once, before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from megatile.core.expr import Const, Symbol, eq, known, simplify, trips, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.fusion import elementwise
from megatile.verdict.grid import parts_in_grid
from megatile.verdict.model import Finding
from megatile.verdict.serial import SERIAL
from megatile.verdict.study import Study, rule

BORDER = 2.0
"""How many times the elements that a block stores it may load of them in the next step."""
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
    """Find elements that all blocks of a row or column compute again."""
    source = study.lowered.source if study.lowered is not None else None
    for nest, out, times in _same(source) if source is not None else ():
        assert source is not None
        once, rest = computed_before(source, nest, out)
        low = study.lower(once)
        before = study.plan_ps(low.plan) if low is not None else None
        after = study.program_ps(lambda _: rest)  # noqa: B023
        if before is not None and after is not None:
            yield from study.finding(
                "repeated work", before + after - study.launch_ps,
                f"programs timed again: one that computes '{out}' once, and one that loads it",
                bottleneck=f"repeated work: {times} blocks compute '{out}' of the same elements",
                reason=f"it does not depend on where these blocks differ; vector engines are busy "
                f"{study.result.use('vector') if 'vector' in study.result.busy else 0.0:.0%}",
                step=f"compute it once, in a phase before this one, and load '{out}' from memory here",
                source=changes.source_line(next(iter(n.walk(nest.body)), nest)),
            )  # fmt: skip


def _same(program: Program) -> Iterator[tuple[n.Parallel, str, int]]:
    """Yield elementwise code in a loop of blocks that makes a tile of nothing but loaded ones, with that tile
    and how many blocks make the same."""
    table, tensors = bindings(program), {p.name for p in program.params}
    regions = [r for r in n.each(n.ScaleRegion, program.body) if r.scale == program.launch.dispatch]
    for loop in [m for m in regions[0].body if isinstance(m, n.Loop)] if len(regions) == 1 else ():
        for nest in n.each(n.Parallel, loop.body):
            if not any(nest is m for m in loop.body):
                continue
            outs = {r.source for m in n.walk(nest.body) for kind, r in n.regions(m) if kind != "read"}
            feeds = _feeds(program, loop, nest)
            if len(outs) != 1 or feeds is None or outs & tensors:
                continue
            (out,) = outs
            writes = sum(
                r.source == out for m in n.walk(loop.body) for kind, r in n.regions(m) if kind != "read"
            )
            own = sum(
                r.source == out for m in n.walk(nest.body) for kind, r in n.regions(m) if kind != "read"
            )
            used = {
                p.axis for m in (*feeds, *n.walk((nest,))) for e in n.expressions(m) for p in walk(e)
                if isinstance(p, Coord) and p.scale == program.launch.dispatch
            }  # fmt: skip
            extents = program.launch.extents(program.launch.dispatch)
            times = prod(e for axis, e in enumerate(extents) if axis not in used)
            alike = any(table[m.to.source].shape == table[out].shape for m in feeds)
            if times > 1 and writes == own and alike and out not in {m.to.source for m in feeds}:
                yield nest, out, times


def _feeds(program: Program, loop: n.Loop, nest: n.Parallel) -> list[n.Copy] | None:
    """Return the loads of all that elementwise code reads, those of the loop first; None if it reads more."""
    table, tensors = bindings(program), {p.name for p in program.params}
    read = {r.source for m in n.walk(nest.body) for kind, r in n.regions(m) if kind != "write"}
    inside = [m for m in loop.body if isinstance(m, n.Copy) and m.to.source in read]
    regions = [r for r in n.each(n.ScaleRegion, program.body) if r.scale == program.launch.dispatch]
    before = [m for m in regions[0].body if isinstance(m, n.Copy) and m.to.source in read]
    feeds = [*inside, *before]
    writers = [
        r.source for m in n.walk(program.body) for kind, r in n.regions(m)
        if kind != "read" and r.source in read
    ]  # fmt: skip
    loaded = all(table[m.source.source].base in tensors and n.remote(m) is None for m in feeds)
    if not inside or not loaded or sorted(writers) != sorted(m.to.source for m in feeds):
        return None
    return feeds if read == set(writers) else None


def computed_before(program: Program, nest: n.Parallel, out: str) -> tuple[Program, Program]:
    """Return a program that stores what elementwise code makes, once and in blocks of its own, and this one
    with a load in its place."""
    table = bindings(program)
    loop = next(m for m in n.each(n.Loop, program.body) if any(m is nest for m in m.body))
    feeds = _feeds(program, loop, nest) or []
    like = next(m for m in feeds if table[m.to.source].shape == table[out].shape)
    base = next(p for p in program.params if p.name == table[like.source.source].base)
    made = replace(base, name=f"{base.name}_{out}", dtype=table[out].dtype)
    there, here = replace(like.source, source=made.name), n.whole(out, table[out].shape)
    params = (*program.params, made)
    load = n.Copy(here, there, span=like.span)
    read_by_others = {
        r.source for m in n.walk(program.body, (n.Parallel,)) for kind, r in n.regions(m) if kind != "write"
    } | {
        r.source for other in n.each(n.Parallel, program.body) if other is not nest
        for m in n.walk(other.body) for kind, r in n.regions(m) if kind != "write"
    }  # fmt: skip
    gone = [m for m in feeds if m.to.source not in read_by_others]
    tiles = {m.to.source for m in gone}

    def loading(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        kept = (
            m for m in body
            if not any(m is g for g in gone) and not (isinstance(m, n.Alloc) and m.name in tiles)
        )  # fmt: skip
        return tuple(load if m is nest else n.with_bodies(m, loading) for m in kept)

    store = n.Copy(there, here, span=nest.span)
    own = replace(loop, body=(*(m for m in loop.body if any(m is f for f in feeds)), nest, store))
    needed = {m.to.source for m in feeds} | {out}

    def computing(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        result: list[n.Node] = []
        for m in body:
            if m is loop:
                result.append(own)
            elif isinstance(m, n.ScaleRegion):
                result.append(n.with_bodies(m, computing))
            elif isinstance(m, (n.View, n.Hint)) or any(m is f for f in feeds) or (
                isinstance(m, n.Alloc) and m.name in needed
            ):  # fmt: skip
                result.append(m)
        return tuple(result)

    once = replace(program, params=params, body=computing(program.body))
    used = {
        p.axis for m in (*feeds, *n.walk((nest,))) for e in n.expressions(m) for p in walk(e)
        if isinstance(p, Coord) and p.scale == program.launch.dispatch
    }  # fmt: skip
    for axis, extent in enumerate(program.launch.extents(program.launch.dispatch)):
        if axis not in used:
            once = changes.one_block_in(once, axis, extent)
    return parts_in_grid(once), replace(program, params=params, body=loading(program.body))
