"""Rules about units that talk: exposed communication, algorithms, small messages, barriers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from megatile.core.expr import Binary, Expr, Symbol, known, linear, substitute, symbols, walk
from megatile.core.quantities import format_bytes, format_time
from megatile.hda.parameters import figures
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.sim.sensitivity import used_figures
from megatile.verdict import changes, overlap
from megatile.verdict.model import MIN_GAIN, Finding
from megatile.verdict.study import IDEAL, OutOfBudget, Study, collectives, rule

SPLITS = (2, 4, 8)
"""Into how many parts a product and its all-reduce are cut, as long as that is faster."""
PARTS = 4
"""Into how many parts a single exchange is assumed to be cut."""
MAX_ROUNDS = 9
"""Rounds of a loop in which what is written is followed to where it is read."""
SMALL_SHARE = 0.5
"""The share of what free messages save that free latency must save, to call messages small."""


def _figures(study: Study, *endings: str) -> list[str]:
    """The figures of networks, of those in use if it is known which these are (in-network reductions show no
    links)."""
    every = used_figures(study.result) if study.result.links else list(figures(study.hda))
    return [f for f in every if f.startswith("networks.") and f.endswith(endings)]


def _communicates(study: Study) -> bool:
    return study.plan.units > 1 and (bool(study.result.links) or bool(_meetings(study)))


@rule("barriers")
def barriers(study: Study) -> Iterator[Finding]:
    """Units meet in every iteration of a loop."""
    if study.lowered is None:
        return
    program = study.lowered.source
    found = _needless(program)
    if found:
        every = [m for loop in n.each(n.Loop, program.body) for m in n.walk(loop.body)]
        gone = set(map(id, found))
        needed = [m for m in every if isinstance(m, n.Barrier) and id(m) not in gone]
        keep = ", ".join(dict.fromkeys(changes.source_line(m).rpartition(":")[2] for m in needed))
        yield from study.finding(
            "barriers", study.program_ps(lambda p: changes.without(p, found)),
            f"program timed again without {'the others' if keep else 'the barriers in loops'}", bound=True,
            bottleneck="barriers: units meet in every iteration",
            reason=f"{study.share('control', 'channel'):.0%} of the critical path is waiting",
            step=f"keep the barrier of line {keep} alone: behind the others nothing is read that units write"
            if keep else
            "one barrier after the loop, or a signal and a wait between those that need each other",
            source=changes.source_line(found[0]),
        )  # fmt: skip


def _needless(program: Program) -> list[n.Node]:
    """Barriers that loops repeat, but those behind which something is read before the next one that another
    unit may have written before it."""
    found: dict[int, n.Node] = {}
    table, tensors = bindings(program), {p.name for p in program.params}
    for loop in n.each(n.Loop, program.body):
        inside = list(n.walk(loop.body))
        barriers = [m for m in inside if isinstance(m, n.Barrier)]
        found |= {id(m): m for m in barriers}
        written, read = list[tuple[n.Node, n.Region]](), list[n.Region]()
        waiting: n.Node | None = None
        since = read_since = 0
        for node, here in _rounds(loop, inside):  # what a round writes may be read in the next
            far = getattr(node, "src", None) is not None
            for kind, region in here if waiting is not None else ():
                base = table[region.source].base
                others = [
                    r for writer, r in written
                    if kind != "write" and (far or n.remote(writer) is not None or base in tensors)
                ]  # fmt: skip
                if kind != "read" and n.remote(node) is not None:  # others may still read what a put changes
                    others += read[: len(read) - read_since]
                if any(table[r.source].base == base and _may_overlap(region, r) for r in others):
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


def _may_overlap(one: n.Region, other: n.Region) -> bool:
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


@rule("communication")
def communication(study: Study) -> Iterator[Finding]:
    """Messages that no computation hides."""
    if not _communicates(study):
        return
    rates, waits = _figures(study, "bandwidth"), _figures(study, "latency", "hop_overhead")
    others = [f"engines.{e.name}.startup" for e in study.hda.engines if e.kind == "dma" and e.startup_ps]
    others += [f"memory.{m.name}.latency" for m in study.hda.memories if m.latency_ps]
    silent = _rewritten(study.plan, _silent)
    free = study.figures_ps(dict.fromkeys(rates, IDEAL) | dict.fromkeys(waits, 1 / IDEAL), silent)
    quick = study.figures_ps(dict.fromkeys([*waits, *others], 1 / IDEAL))
    if free is None or quick is None:
        return
    line = study.line("channel", "dma", "control") or study.line()
    if study.base_ps - quick > SMALL_SHARE * (study.base_ps - min(free, quick)) and _are_small(study, line):
        yield from _small_messages(study, line)
    if study.lowered is not None:
        yield from _algorithms(study)
        yield from _by_copies(study)
        yield from _batches(study)
    if not study.result.flops:
        return
    if study.lowered is not None and any(True for _ in overlap.splits(study.lowered.source)):
        yield from _in_parts(study, free, line)
        return
    alone = study.plan_ps(_rewritten(study.plan, _idle)) or 0
    talk, parts = study.base_ps - free, max(2, _meetings(study)) if _meetings(study) != 1 else PARTS
    yield from study.finding(
        "exposed communication", max(alone, free + talk / parts),
        f"timed again without messages: {format_time(free)}, and without work: {format_time(alone)}; all but "
        f"one part in {parts} of the messages hidden",
        bottleneck="exposed communication: nothing is computed while messages travel",
        reason=f"messages add {format_time(talk)} to {format_time(free)} of work ({study.result.model})",
        step=f"overlap: divide what line {line.rpartition(':')[2]} communicates into {parts} parts, begin "
        "with the work that needs only the first, and communicate the next part meanwhile",
        source=line,
    )  # fmt: skip


def _in_parts(study: Study, free: int, line: str) -> Iterator[Finding]:
    """An all-reduce of what blocks have written, in parts: each while the next is computed."""
    assert study.lowered is not None
    source, times = study.lowered.source, dict[tuple[int, int], int]()
    ways = list(overlap.splits(source))
    for number, way in enumerate(ways):
        for parts in filter(way.divides, SPLITS):
            try:
                ps = study.program_ps(partial(overlap.divided, split=way, parts=parts))
            except OutOfBudget:
                break
            if ps is None or ps > min(times.values(), default=study.base_ps):
                break
            times[number, parts] = ps
    talk = study.base_ps - free
    reason = f"messages add {format_time(talk)} to {format_time(free)} of work ({study.result.model})"
    best = min(times, key=lambda key: times[key], default=None)
    if best is not None and times[best] < study.base_ps * (1 - MIN_GAIN):
        way, parts = ways[best[0]], best[1]
        yield from study.finding(
            "exposed communication", times[best], f"program timed again in {parts} parts",
            bottleneck="exposed communication: nothing is computed while messages travel",
            reason=reason, step=way.text(source, parts), source=changes.source_line(way.collective) or line,
        )  # fmt: skip
        return
    yield from study.finding(
        "exposed communication", free, "timed again without messages", bound=True,
        bottleneck="exposed communication: nothing is computed while messages travel",
        reason=f"{reason}; in parts it was not faster",
        step="hide it behind work that does not need it (the next layer), or communicate less: "
        "T.reduce_scatter where the next step takes parts, a smaller dtype",
        source=line,
    )  # fmt: skip


def _batches(study: Study) -> Iterator[Finding]:
    """Several collectives of one tensor in a row."""
    assert study.lowered is not None
    found = overlap.batches(study.lowered.source)
    if found:
        nodes, whole = max(found, key=lambda item: len(item[0]))
        count = len([s for s in study.groups if s[2] == changes.source_line(nodes[0])]) and len(nodes)
        yield from study.finding(
            "small messages", study.program_ps(overlap.batched), "program timed again with one collective",
            bottleneck="latency of messages: many small collectives, one after the other",
            reason=f"{count if count > 1 else 'a loop of'} {whole.kind}s of neighbouring parts of "
            f"'{whole.to[0].source}', each with its own start",
            step=f"one T.{whole.kind} of all parts",
            source=changes.source_line(nodes[0]),
        )  # fmt: skip


def _are_small(study: Study, line: str) -> bool:
    """Whether the bytes of the messages of a line take less time on the links than the line does."""
    sizes = [known(s.work.bytes) or 0 for body in study.plan.bodies for s in body
             if isinstance(s, (pm.Compute, pm.Send)) and str(s.source or "") == line]  # fmt: skip
    rates = [net.effective_bandwidth for net in study.hda.networks]
    rows = [row for row in study.groups if row[2] == line]
    steps, spent = sum(row[3] for row in rows), sum(row[4] for row in rows)
    if not sizes or not rates or not steps:
        return True
    return max(sizes) / max(rates) * 1e12 < SMALL_SHARE * spent / steps


def _small_messages(study: Study, line: str) -> Iterator[Finding]:
    links = study.result.links
    moved = max((study.result.usage.bytes_on[name] for name in links), default=0)
    busy = max(links.values(), default=0.0)
    mine = [row for row in study.groups if row[2] == line]
    steps, spent = max(1, sum(row[3] for row in mine)), sum(row[4] for row in mine)
    yield from study.finding(
        "small messages", study.base_ps - spent * (1 - 1 / steps) + busy * study.base_ps,
        "one message of that line on the critical path, all bytes on the link", bound=True,
        bottleneck="latency of messages: they are small, and wait for each other",
        reason=f"{steps} in a row on the critical path; the busiest link carries {format_bytes(moved)} and "
        f"works for {busy:.0%} of the time",
        step="fewer, larger messages; or send the next before the last has arrived",
        source=line,
    )  # fmt: skip


def _rewritten(plan: pm.Plan, change: Callable[[Any], Any]) -> pm.Plan:
    """Return the Plan with every statement changed; where the change is None, without it."""
    streams = (replace(stream, body=rewritten(stream.body, change)) for stream in plan.streams)
    return replace(plan, streams=tuple(streams))


def _silent(s: Any) -> Any:
    """Replace a collective by a barrier, and leave out kernels of libraries."""
    if isinstance(s, pm.Collective):
        return pm.Collective("barrier", s.group, source=s.source)
    return None if isinstance(s, pm.Start) else s


def _idle(s: Any) -> Any:
    """Leave out work on a unit's own tiles."""
    local = isinstance(s, pm.Compute) and all(region.at is None for region in (*s.reads, s.write))
    return None if local else s


def _meetings(study: Study) -> int:
    return collectives(study.plan)


def _by_copies(study: Study) -> Iterator[Finding]:
    """Collectives of parts of tensors, which are done by copies though the library does whole tiles."""
    assert study.lowered is not None
    started = {str(s.source or "") for body in study.plan.bodies for s in body if isinstance(s, pm.Start)}
    found = [
        c for c in n.each(n.Collective, study.lowered.source.body)
        if changes.source_line(c) not in started and not c.impl and len(c.source) == len(c.to) == 1
    ]  # fmt: skip
    if found:
        yield from study.finding(
            "collective by copies", study.program_ps(partial(_staged, wanted=found)),
            "program timed again with tiles of their own",
            bottleneck=f"{found[0].kind} of a part of '{found[0].source[0].source}' by copies, without the "
            "library",
            reason="the library takes whole tiles; parts are copied from unit to unit, one after the other",
            step="T.copy the part into a tile of its own first, and back after it",
            source=changes.source_line(found[0]),
        )  # fmt: skip


def _staged(program: Program, wanted: list[n.Collective]) -> Program:
    """Return the program whose collectives have whole tiles, with copies before and after them."""
    table, level = bindings(program), next((m.level for m in n.each(n.Alloc, program.body)), "l2")

    def staged(one: n.Collective) -> tuple[n.Node, ...]:
        before, after, whole = list[n.Node](), list[n.Node](), dict[str, n.Region]()
        for side, region in (("source", one.source[0]), ("to", one.to[0])):
            shape = tuple(known(e) or 0 for e in region.extents)
            bound = table[region.source]
            if region == n.whole(bound.base, bound.shape) or 0 in shape:
                whole[side] = region
                continue
            name = f"{region.source}_{side}"
            whole[side] = n.whole(name, shape)
            before.append(n.Alloc(name, shape, bound.dtype, level, one.scale, span=one.span))
            if side == "source":
                before.append(n.Copy(whole[side], region, span=one.span))
            else:
                after.append(n.Copy(region, whole[side], span=one.span))
        return (*before, replace(one, to=(whole["to"],), source=(whole["source"],)), *after)

    def change(body: tuple[n.Node, ...]) -> tuple[n.Node, ...]:
        made: list[n.Node] = []
        for node in body:
            mine = isinstance(node, n.Collective) and any(node is one for one in wanted)
            made += staged(node) if mine else (n.with_bodies(node, change),)  # type: ignore[arg-type]
        return tuple(made)

    return replace(program, body=change(program.body))


def _algorithms(study: Study) -> Iterator[Finding]:
    """Collectives for which another algorithm was forced than the planner would take."""
    assert study.lowered is not None
    forced = [c for c in n.each(n.Collective, study.lowered.source.body) if c.algorithm or c.impl]
    if forced:
        named = forced[0].algorithm or forced[0].impl
        yield from study.finding(
            "algorithm", study.program_ps(lambda p: changes.with_algorithm(p, None)),
            "program timed again with the planner's choice",
            bottleneck=f"the algorithm of a collective: '{named}' is not the fastest here",
            reason=f"algorithm='{named}' is given for {forced[0].kind}",
            step="leave out algorithm=: the planner chooses by size and machine",
            source=changes.source_line(forced[0]),
        )  # fmt: skip
