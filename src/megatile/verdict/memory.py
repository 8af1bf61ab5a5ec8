"""Rules about memories: traffic that need not be, latency that nothing hides, banks and sectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod

from megatile.core.dtypes import itemsize
from megatile.core.expr import Binary, known, linear, symbols, walk
from megatile.core.quantities import format_bytes, format_time
from megatile.hda import HDA
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.program import Program, bindings
from megatile.lowering.explain import figures
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes, needless
from megatile.verdict.grid import split_rounds
from megatile.verdict.model import MIN_GAIN, Finding, Kind
from megatile.verdict.staged import in_tiles
from megatile.verdict.study import IDEAL, OutOfBudget, Study, rule

PANELS = (8, 4, 16)
REREAD = 1.2
"""Times the compulsory bytes of device memory from which on their order is worth a look."""
BUSY = 0.4
"""The share of the time in which device memory works from which on its traffic is worth a look."""
PADDINGS = (1, 2, 4, 8, 16)
"""Elements at the end of a tile's rows that are tried against bank conflicts."""


@rule("block order")
def block_order(study: Study) -> Iterator[Finding]:
    """Device memory is read again and again, as blocks of one time share little in the cache."""
    found, hda = study.figures, study.hda
    if found is None or not found.memory or found.actual_bytes < REREAD * found.compulsory_bytes:
        return
    caches = [m for m in hda.memories if m.cache and m.of == found.memory]
    if study.busy(found.memory) < BUSY:
        return
    if not caches or study.lowered is None or not changes.shared_loads(study.lowered.source):
        return
    known: dict[str, int] = {}
    for panel in PANELS:
        change = partial(changes.with_hint, word="use_swizzle", text=f'panel_size={panel}, order="row"')
        try:
            ps = study.program_ps(change)
        except OutOfBudget:
            break
        if ps is not None:
            known[f"T.use_swizzle({panel})"] = ps
    step = min(known, key=lambda s: known[s], default="")
    ps, how, bound = known.get(step), f"program timed again with {step}", False
    if ps is None or ps > study.base_ps * 0.95:
        if _shared_bytes(study) <= caches[0].size:
            return  # whatever the order, what blocks share stays there
        figure = f"memory.{caches[0].name}.size"
        ps, how, bound = (
            study.figures_ps({figure: IDEAL}),
            f"timed again with a {caches[0].name} that holds all",
            True,
        )
        step = "group the blocks, so that those that run at one time share rows and columns"
    traffic = study.result.traffic.get(caches[0].name)
    yield from study.finding(
        "block order", ps, how, bound=bound,
        bottleneck=f"low reuse in {caches[0].name}: blocks that run at one time share too little",
        reason=f"{found.memory} moves {format_bytes(found.actual_bytes)}, "
        f"{found.actual_bytes / max(1, found.compulsory_bytes):.1f}× the "
        f"{format_bytes(found.compulsory_bytes)} of the tensors; "
        f"{traffic.hit_text if traffic else 'no hits'}, {found.memory} busy {study.busy(found.memory):.0%}",
        step=f"{step} in the kernel: blocks begin in panels" if step.startswith("T.") else step,
        source=study.line("dma"),
    )  # fmt: skip


def _shared_bytes(study: Study) -> int:
    """Return the bytes of all tensors whose elements several blocks load."""
    assert study.lowered is not None
    source, table = study.lowered.source, bindings(study.lowered.source)
    names = {table[copy.source.source].base for copy in changes.shared_loads(source)}
    tensors = (p for p in source.params if p.name in names)
    return sum(prod(int(e) for e in p.shape) * itemsize(p.dtype) for p in tensors)


def _use(study: Study, engine: str) -> float:
    return study.result.use(engine) if engine in study.result.busy else 0.0


@rule("repeated loads")
def repeated_loads(study: Study) -> Iterator[Finding]:
    """The same elements of a tensor are copied more than once by one block."""
    if study.lowered is None:
        return
    source = study.lowered.source
    table, tensors = bindings(source), {p.name for p in source.params}
    inside = [
        (loop, copy) for loop, copy in needless.invariant(source)
        if isinstance(copy, n.Copy) and table[copy.source.source].base in tensors
    ]  # fmt: skip
    if inside:
        loop, copy = inside[0]
        yield from study.finding(
            "repeated loads", study.program_ps(needless.hoisted),
            "program timed again with the copy before the loop",
            bottleneck="redundant traffic: a tile is loaded again in every iteration",
            reason=f"nothing in the copy of '{copy.source.source}' depends on '{loop.var}'",
            step=f"copy '{copy.to.source}' once, before the loop",
            source=changes.source_line(copy),
        )  # fmt: skip


@rule("blocks that load the same tiles")
def alike(study: Study) -> Iterator[Finding]:
    """Find blocks that load the same tiles (a division drops the coordinate that tells them apart) while the
    cache is the bottleneck."""
    caches = [m.name for m in study.hda.memories if m.cache and study.busy(m.name) > BUSY]
    found = _divided(study.lowered.source) if study.lowered is not None and caches else []
    if found:
        copy, axis, blocks = max(found, key=lambda item: item[2])
        every = [f"memory.{m.name}.bandwidth" for m in study.hda.memories if m.cache or m.name in caches]
        names = ", ".join(f"'{name}'" for name in dict.fromkeys(c.source.source for c, *_ in found))
        once = {c.source.source for c, *at in found if at == [axis, blocks]}
        merged = _merged_ps(study, axis, blocks, once)
        served = study.figures_ps(dict.fromkeys(every, float(blocks)))
        times = {
            f"Plan timed again with one block in {blocks}, which does the work of all": merged,
            f"timed again with caches that give {blocks} blocks the bytes of one": served,
        }
        timed = {how: ps for how, ps in times.items() if ps is not None}
        how = min(timed, key=lambda text: timed[text], default="")
        yield from study.finding(
            "blocks that load the same tiles", timed.get(how), how,
            bottleneck=f"redundant traffic: {blocks} blocks in a row load the same tiles of {names}",
            reason=f"a division drops what they differ in; '{caches[0]}' is busy {study.busy(caches[0]):.0%}",
            step=f"one block for all {blocks}: load the tiles once, and compute for all of them",
            source=changes.source_line(copy),
        )  # fmt: skip


def _merged_ps(study: Study, axis: int, blocks: int, once: set[str]) -> int | None:
    """Return the time with one block in so many along an axis: it loads the named tensors once, and all its
    other commands have the work of all those blocks, but none more in tiles that have room for all of them
    (rows that a block computes and does not store). None: there is no such grid."""
    assert study.lowered is not None
    source = study.lowered.source
    if source.launch.extents(source.launch.dispatch)[axis] % blocks:
        return None
    fewer = changes.one_block_in(source, axis, blocks)
    found = [
        _with_all_work(study, source, one, blocks, once) for one in (fewer, split_rounds(fewer, blocks)[0])
    ]
    return min((ps for ps in found if ps is not None), default=None)


def _with_all_work(study: Study, source: Program, one: Program, blocks: int, once: set[str]) -> int | None:
    """Return the time of a program with fewer blocks, each of which does the work of several."""
    low = study.lower(one)
    if low is None:
        return None
    table = bindings(source)
    tensors = {table[name].base for name in once}
    shared = {t.name for t in low.plan.tiles if t.role != "local"}
    room = _spare(source) >= blocks

    def change(s: pm.Statement) -> pm.Statement:
        if not isinstance(s, pm.Compute) or (s.engine == "dma" and any(r.tile in tensors for r in s.reads)):
            return s
        if room and not any(r.tile in shared for r in (*s.reads, s.write)):
            return s
        work = replace(s.work, flops=s.work.flops * blocks, bytes=s.work.bytes * blocks)
        return replace(s, work=work)

    streams = tuple(replace(x, body=rewritten(x.body, change)) for x in low.plan.streams)
    return study.plan_ps(replace(low.plan, streams=streams))


def _spare(program: Program) -> int:
    """Return how many times what blocks store would fit the tiles that they store it from."""
    table, tensors = bindings(program), {p.name for p in program.params}
    times = []
    for copy in changes.block_copies(program):
        if table[copy.to.source].base in tensors:
            stored = [known(e) for e in copy.source.extents]
            whole = prod(int(e) for e in table[copy.source.source].shape)
            times.append(1 if None in stored else whole // max(1, prod(int(e or 1) for e in stored)))
    return min(times, default=1)


def _divided(program: Program) -> list[tuple[n.Copy, int, int]]:
    """Loads of tensors whose place depends on a coordinate of the grid only after a division, its axis, and
    how many blocks that differ in it alone load the same."""
    tensors, table = {p.name for p in program.params}, bindings(program)
    scale, counts = program.launch.dispatch, program.launch.extents(program.launch.dispatch)
    found = []
    for copy in changes.block_copies(program):
        for axis in range(len(counts) if table[copy.source.source].base in tensors else 0):
            here, parts = Coord(scale, axis), [p for e in copy.source.expressions() for p in walk(e)]
            divided = [p for p in parts if isinstance(p, Binary) and p.operator == "//" and here in walk(p)]
            inside = sum(p == here for d in divided for p in walk(d))
            if divided and inside == parts.count(here):
                terms, by = linear(divided[0].left)[0], known(divided[0].right)
                alike = min((by or 1) // max(1, abs(terms.get(here, by or 1))), counts[axis])
                found += [(copy, axis, alike)] if alike > 1 else []
    return found


@rule("round trip")
def round_trips(study: Study) -> Iterator[Finding]:
    """A tile goes to device memory and comes back to the same block."""
    if study.lowered is None:
        return
    inside = list(changes.carried_in_memory(study.lowered.source))
    if inside:
        yield from study.finding(
            "round trip", study.program_ps(changes.carried_in_tile),
            "program timed again with the load before the loop and the store after it",
            bottleneck="round trip: every iteration loads a result from device memory and stores it again",
            reason=f"'{inside[0][1].source.source}' is the same part in every iteration of "
            f"'{inside[0][0].var}'",
            step="load it before the loop, keep it in the tile, store it after the loop",
            source=changes.source_line(inside[0][1]),
        )  # fmt: skip
    pairs = changes.round_trips(study.lowered.source)
    if not pairs:
        return
    store, load = pairs[0]
    name = store.to.source
    kept = study.program_ps(lambda p: changes.without(p, [back for _, back in pairs]))
    if kept is None:
        return
    both = study.program_ps(lambda p: changes.without(p, [one for pair in pairs for one in pair]))
    alone = f"; without the load alone {format_time(kept)}" if both is not None else ""
    yield from study.finding(
        "round trip", kept if both is None else both, f"program timed again without both copies{alone}",
        bottleneck=f"round trip: a tile is stored to '{name}' and loaded again by the same block",
        reason=f"'{load.to.source}' gets what this block has just stored",
        step=f"go on with the tile; store '{name}' only if it is a result",
        source=changes.source_line(load),
    )  # fmt: skip


@rule("bank conflicts")
def bank_conflicts(study: Study) -> Iterator[Finding]:
    """Lanes take turns in the banks of a memory."""
    found = study.figures
    if found is None or not found.conflicts:
        return
    line, (memory, tile, turns) = max(found.conflicts.items(), key=lambda item: (item[1][2], item[0]))
    others = {name for _, name, _ in found.conflicts.values()} - {tile}
    alone = study.program_ps(lambda p: changes.padded(p, {tile}))
    every = study.program_ps(lambda p: changes.padded(p, {tile, *others})) if others else None
    more = f"; with {', '.join(sorted(others))} too {format_time(every)}" if every is not None else ""
    yield from study.finding(
        "bank conflicts", alone, f"program timed again with '{tile}' swizzled{more}",
        bottleneck=f"bank conflicts in '{memory}'",
        reason=f"{turns} lanes use one bank of '{tile}' at a time",
        step=_arrangement(study, tile),
        source=line,
    )  # fmt: skip


def _arrangement(study: Study, tile: str) -> str:
    """Return how to lay out a tile so that lanes do not meet: the least padding of rows that does it."""
    assert study.lowered is not None
    for elements in PADDINGS:
        low = study.lower(changes.with_longer_rows(study.lowered.source, tile, elements))
        if low is not None and not figures(low).conflicts:
            return f"pad the rows of '{tile}' by {elements} element{'s' * (elements > 1)}, or swizzle it"
    return f"swizzle '{tile}'"


@rule("uncoalesced access")
def sectors(study: Study) -> Iterator[Finding]:
    """Rows are shorter than what a memory moves at once."""
    found = study.figures
    if found is None or not found.waste or study.lowered is None:
        return
    line, (memory, row, factor) = max(found.waste.items(), key=lambda item: (item[1][2], item[0]))
    bottleneck = f"uncoalesced access: '{memory}' moves {factor:.3g}× the bytes that are used"
    reason = f"rows of {format_bytes(row)} lie in whole sectors"
    staged = study.program_ps(in_tiles)
    if staged is not None and staged < study.base_ps * (1 - MIN_GAIN):
        yield from study.finding(
            "uncoalesced access", staged, "program timed again with tiles between", bottleneck=bottleneck,
            reason=reason, source=line,
            step="T.copy to a tile, turn elements there, and T.copy the tile to where it goes; a row one "
            "element longer avoids bank conflicts",
        )  # fmt: skip
        return
    fine = HDA.from_dict(study.hda.to_dict(), **{f"memory.{memory}.sector": "1 B"})
    low = study.lower(study.lowered.source, fine)
    ps = study.plan_ps(low.plan, fine) if low is not None else None
    least = round(figures(low).least_ps) if low is not None else 0
    yield from study.finding(
        "uncoalesced access", None if ps is None else max(ps, least),
        f"timed again as if '{memory}' moved single bytes, at its bandwidth", bound=True,
        bottleneck=bottleneck, reason=reason,
        step="let neighbouring lanes take neighbouring elements: wider tiles, or the other layout",
        source=line,
    )  # fmt: skip


@rule("dependent loads")
def dependent_loads(study: Study) -> Iterator[Finding]:
    """A loop reads an index from a tensor, waits for it, and then loads what it points to."""
    if study.lowered is None:
        return
    for loop in n.each(n.Loop, study.lowered.source.body):
        scalars = [m for m in loop.body if isinstance(m, n.ReadScalar)]
        names = {m.name for m in scalars}
        copies = [
            m
            for m in loop.body
            if isinstance(m, n.Copy) and any(symbols(e) & names for e in n.expressions(m))
        ]
        if scalars and copies:
            yield from study.finding(
                "dependent loads", study.figures_ps(_answers(study)),
                "timed again with memories that answer at once", bound=True,
                bottleneck="dependent loads: each iteration waits for an index, then for what it points to",
                reason=f"'{scalars[0].name}' is read from memory in each iteration of '{loop.var}', before "
                f"'{copies[0].to.source}' is loaded",
                step="load all indices first, and the rows together: T.Parallel over rows and columns with "
                "X[index[i], j], or T.Pipelined with several stages",
                source=changes.source_line(scalars[0]),
            )  # fmt: skip
            return


def _answers(study: Study) -> dict[str, float]:
    """Figures of memories and copies that take no time to answer."""
    names = [f"memory.{m.name}.latency" for m in study.hda.memories if m.latency_ps]
    names += [f"engines.{e.name}.latency" for e in study.hda.engines if e.kind == "dma" and e.latency_ps]
    return dict.fromkeys(names, 1 / IDEAL)


@rule("exposed latency", Kind.ADVICE)
def latency(study: Study) -> Iterator[Finding]:
    """Nothing is busy most of the time: units wait for memories to answer."""
    if study.busiest[1] > 0.8 or study.plan.units > 1:
        return
    yield from study.finding(
        "exposed latency", study.figures_ps(_answers(study)),
        "timed again with memories that answer at once", bound=True,
        bottleneck="exposed latency: units wait for memories to answer",
        reason=f"{study.share('dma'):.0%} of the critical path is copies, and of memories, links and compute "
        f"engines the busiest is {study.busiest[0]} ({study.busiest[1]:.0%})",
        step="keep more bytes in flight: more resident blocks, larger copies, or pipeline stages",
        source=study.line("dma"),
    )  # fmt: skip
