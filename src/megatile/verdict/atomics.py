"""Rules about atomics: those of a loop, a block or several blocks could be combined first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatile.core.expr import Const, Expr, Symbol, binary, eq, known, symbols, walk
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.expr import Load
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.footprint import tile_bytes
from megatile.verdict.model import Finding
from megatile.verdict.study import IDEAL, Study, rule

SELDOM = (4, 16)
"""How many blocks are tried as one that adds what they all have to a tensor."""
COMBINE = {"add": "+", "max": "max", "min": "min"}


@rule("repeated atomics")
def repeated_atomics(study: Study) -> Iterator[Finding]:
    """Find atomics whose elements are the same in every iteration of a loop."""
    if study.lowered is None:
        return
    program = study.lowered.source
    regions, elements = list(_repeated(program)), list(_repeated_elements(program))
    if regions or elements:
        loop, one, name = (
            (*regions[0], regions[0][1].to.source) if regions else (*elements[0][::2], elements[0][2].target)
        )
        yield from study.finding(
            "repeated atomics", study.program_ps(lambda p: elements_first(combined_first(p))),
            "program timed again with a sum in a tile and one atomic after the loop",
            bottleneck=f"repeated atomics: every iteration of '{loop.var}' changes the same elements of "
            f"'{name}'",
            reason=f"nothing in '{name}[…]' depends on '{loop.var}'; each is a round through memory",
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


def _repeated_elements(program: Program) -> Iterator[tuple[n.Loop, n.Parallel, n.Atomic]]:
    """Yield atomics of elements, directly in loops, that change the same elements of a tensor each time."""
    table, tensors = bindings(program), {p.name for p in program.params}
    for loop in n.each(n.Loop, program.body):
        inside = list(n.walk(loop.body))
        changing = {loop.var} | {m.name for m in inside if isinstance(m, (n.Let, n.ReadScalar))}
        for nest in loop.body:
            one = nest.body[0] if isinstance(nest, n.Parallel) and len(nest.body) == 1 else None
            if not isinstance(one, n.Atomic) or (one.dst, one.expected, one.result) != (None, None, None):
                continue
            assert isinstance(nest, n.Parallel)
            same = not any(symbols(e) & changing or _loads(e) for e in one.index)
            sized = all(known(e) is not None for e in nest.extents)
            if one.op in COMBINE and same and sized and table[one.target].base in tensors:
                base, others = table[one.target].base, [m for m in inside if m is not one]
                if not any(table[name].base == base for m in others for name in _used(m)):
                    yield loop, nest, one


def _loads(e: Expr) -> list[str]:
    return [p.source for p in walk(e) if isinstance(p, Load)]


def _used(node: n.Node) -> list[str]:
    """The tensors and tiles that a statement itself reads or changes."""
    return [*changes.stored_or_loaded(node), *(r.source for _, r in n.regions(node))]


def elements_first(program: Program) -> Program:
    """Return the program with such atomics after their loops, of a tile that adds up."""
    table, made = bindings(program), dict[int, tuple[n.Node, ...]]()
    by_loop: dict[int, list[tuple[n.Loop, n.Parallel, n.Atomic]]] = {}
    for found in _repeated_elements(program):
        by_loop.setdefault(id(found[0]), []).append(found)
    for number, group in enumerate(by_loop.values()):
        before, inner, after = list[n.Node](), dict[int, tuple[n.Node, ...]](), list[n.Node]()
        for at, (_, nest, one) in enumerate(group):
            name, shape = f"{one.target}_total{number}_{at}", tuple(int(known(e) or 1) for e in nest.extents)
            dtype, place = table[one.target].dtype, tuple(map(Symbol, nest.vars))
            total = Load(name, place, dtype)
            before += [
                n.Alloc(name, shape, dtype, "registers", program.launch.dispatch),
                n.Fill(n.whole(name, shape), Const(0), span=one.span),
            ]
            store = n.Store(name, place, binary(COMBINE[one.op], total, one.value), span=one.span)
            inner[id(nest)] = (replace(nest, body=(store,)),)
            after.append(replace(nest, body=(replace(one, value=total),)))
        loop = group[0][0]
        body = tuple(x for node in loop.body for x in inner.get(id(node), (node,)))
        made[id(loop)] = (*before, replace(loop, body=body), *after)
    return changes.replaced(program, made) if made else program


def _added(one: n.AtomicRegion, tile: n.Alloc) -> n.Node:
    """Return the elementwise code that combines a tile with what was added up before."""
    names = tuple(f"i{d}" for d in range(len(tile.shape)))
    index = tuple(map(Symbol, names))
    sides = [Load(name, index, tile.dtype) for name in (f"{tile.name}_total", tile.name)]
    store = n.Store(f"{tile.name}_total", index, binary(COMBINE[one.op], *sides), span=one.span)
    return n.Parallel(names, tuple(map(Const, tile.shape)), (store,), span=one.span)


@rule("contended atomics")
def contended_atomics(study: Study) -> Iterator[Finding]:
    """Atomics change one address, one after the other."""
    every = [s for body in study.plan.bodies for s in body if isinstance(s, pm.Compute) and s.work.atomics]
    names = [f"memory.{m.name}.atomic" for m in study.hda.memories if m.atomic_ps]
    if not every or not names:
        return
    worst = max(every, key=lambda s: s.work.atomics)
    several, step = worst.work.atomics > 1, "fewer blocks that add, or parts that a second pass adds"
    own = sums_in_tile(study.plan, study.hda, worst) if several else None
    kept = study.plan_ps(own) if own is not None else None
    how = f"Plan timed again with '{worst.write.tile}' of a block in a tile, added once at its end"
    if several:
        step = "combine in the block first (T.reduce_sum, a tile of its own), then one atomic for each block"
    elif (fewer := _seldom(study)) is not None:
        kept, times = fewer
        how = f"Plan timed again with atomics of one in {times} blocks"
        step = f"{times} times as much in each block (larger parts, or a loop over several), then one atomic"
    yield from study.finding(
        "contended atomics", study.figures_ps(dict.fromkeys(names, 1 / IDEAL)) if kept is None else kept,
        "timed again with atomics that do not wait for each other" if kept is None else how,
        bound=kept is None,
        bottleneck="contended atomics: they change the same address, one after the other",
        reason=f"{worst.work.atomics} iterations of each block change one element of '{worst.write.tile}'"
        if several else f"every block changes the same elements of '{worst.write.tile}'",
        step=step, source=str(worst.source or ""),
    )  # fmt: skip


def _seldom(study: Study) -> tuple[int, int] | None:
    """Return the time with atomics of one in so many blocks, as if these had the sums of the others, and how
    many; None where blocks change elements of their own, or are too few."""
    level = next((x for x in study.plan.levels if x.slots is not None), None)
    units = study.hda.count(level.scale, study.plan.scale) if level is not None else 0
    found = list[tuple[int, int]]()
    for times in SELDOM if level is not None else ():
        chosen = eq(Symbol("unit") % times, 0)

        def change(s: pm.Statement, chosen: Expr = chosen) -> pm.Statement:
            alike = isinstance(s, pm.Compute) and s.work.atomics and s.write.at is None
            same = alike and not any("unit" in symbols(e) for e in s.write.start)  # type: ignore[union-attr]
            return pm.If(chosen, (s,)) if same else s

        streams = tuple(replace(x, body=rewritten(x.body, change)) for x in study.plan.streams)
        if level is None or level.count < times * units or streams == study.plan.streams:
            break
        ps = study.plan_ps(replace(study.plan, streams=streams))
        found += [(ps, times)] if ps is not None else []
    return min(found, default=None)


def _tile_near(plan: pm.Plan, hda: HDA, like: pm.Tile, level: str | None) -> pm.Tile | None:
    """Return a tile of a block as large as another one; None where there is no room for it."""
    memory = hda.memory("l1")
    tile = pm.Tile(f"{like.name} near", like.shape, like.dtype, memory.name, level=level)
    return tile if tile_bytes(tile) <= memory.available else None


def sums_in_tile(plan: pm.Plan, hda: HDA, worst: pm.Compute) -> pm.Plan | None:
    """Return the Plan whose blocks combine in a tile of their own what a command changes in a tensor, and
    change the tensor once, at the end; None where that cannot be."""
    like = next(t for t in plan.tiles if t.name == worst.write.tile)
    streams = [x for x in plan.streams if any(s is worst for s in pm.statements(x.body))]
    near = _tile_near(plan, hda, like, streams[0].level) if len(streams) == 1 else None
    if near is None or like.role == "local" or worst.write.start or worst.write.at is not None:
        return None

    def own(region: pm.Region) -> pm.Region:
        return pm.Region(near.name) if region.tile == like.name else region

    def change(s: Any) -> Any:
        if not isinstance(s, pm.Compute) or s.write != worst.write:
            return s
        kept = tuple((name, value) for name, value in s.attributes if name != "each")
        return replace(
            s, write=own(s.write), reads=tuple(map(own, s.reads)), attributes=kept,
            work=replace(s.work, fetched=0),
        )  # fmt: skip

    elements = 1
    for extent in like.shape:
        elements *= extent
    add = replace(
        worst,
        reads=(worst.write, pm.Region(near.name)),
        work=replace(worst.work, flops=Const(elements), atomics=1),
    )
    changed = replace(streams[0], body=(*rewritten(streams[0].body, change), add))
    return replace(
        plan,
        tiles=(*plan.tiles, near),
        streams=tuple(changed if x is streams[0] else x for x in plan.streams),
    )
