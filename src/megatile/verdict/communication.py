"""Rules about units that talk: exposed communication, algorithms, small messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.expr import known
from megatile.core.quantities import format_bytes, format_time
from megatile.hda.parameters import figures
from megatile.ir import nodes as n
from megatile.ir.program import Program, bindings
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.sim.sensitivity import used_figures
from megatile.verdict import changes, overlap
from megatile.verdict.model import MIN_GAIN, Finding, Kind
from megatile.verdict.study import IDEAL, OutOfBudget, Study, collectives, rule

SPLITS = (2, 4, 8)
"""Into how many parts a product and its all-reduce are cut, as long as that is faster."""
PARTS = 4
"""Into how many parts a single exchange is assumed to be cut."""
EXPOSED = 0.1
"""The share of the time that messages must add, for what they cost to be looked at first."""
LARGE = 1_000_000
"""Commands of a Plan whose critical path takes long to follow."""
_TALKS = (pm.Collective, pm.Start, pm.Send)
SMALL_SHARE = 0.5
"""The share of what free messages save that free latency must save, to call messages small."""


def _figures(study: Study, *endings: str) -> list[str]:
    """The figures of networks, of those in use if it is known which these are (in-network reductions show no
    links)."""
    every = used_figures(study.result) if study.result.links else list(figures(study.hda))
    return [f for f in every if f.startswith("networks.") and f.endswith(endings)]


def _communicates(study: Study) -> bool:
    return study.plan.units > 1 and (bool(study.result.links) or bool(_meetings(study)))


@rule("communication", costly=True)
def communication(study: Study) -> Iterator[Finding]:
    """Messages that no computation hides."""
    if not _communicates(study):
        return
    free = without_messages(study)
    if free is None:
        return
    line = _line(study)
    by_parts = study.lowered is not None and any(True for _ in overlap.splits(study.lowered.source))
    if study.result.flops and not by_parts:
        yield from _hidden(study, free, line)
    quick = _without_starts(study)
    if (
        quick is not None
        and study.base_ps - quick > SMALL_SHARE * (study.base_ps - min(free, quick))
        and _are_small(study, line)
    ):
        yield from _small_messages(study, line)
    if study.lowered is not None:
        yield from _algorithms(study)
        yield from _by_copies(study)
        yield from _batches(study)
    if study.result.flops and by_parts:
        yield from _in_parts(study, free, line)


@cached_in_owner
def without_messages(study: Study) -> int | None:
    """Return how long the program takes where messages cost nothing; None: it cannot run."""
    rates, waits = _figures(study, "bandwidth"), _figures(study, "latency", "hop_overhead")
    silent = _rewritten(study.plan, _silent)
    return study.figures_ps(dict.fromkeys(rates, IDEAL) | dict.fromkeys(waits, 1 / IDEAL), silent)


def exposed(study: Study) -> bool:
    """Whether a program that computes is much faster without messages."""
    if not study.result.flops or not _communicates(study):
        return False
    try:
        free = without_messages(study)
    except OutOfBudget:
        return False
    return free is not None and free < study.base_ps * (1 - EXPOSED)


def _without_starts(study: Study) -> int | None:
    """Return how long the program takes without latencies; None: it cannot run, or that takes too long."""
    waits = _figures(study, "latency", "hop_overhead")
    waits += [f"engines.{e.name}.startup" for e in study.hda.engines if e.kind == "dma" and e.startup_ps]
    waits += [f"memory.{m.name}.latency" for m in study.hda.memories if m.latency_ps]
    try:
        return study.figures_ps(dict.fromkeys(waits, 1 / IDEAL))
    except OutOfBudget:
        return None


def _line(study: Study) -> str:
    """The source line of messages with most of the critical path; of a large Plan, the first one."""
    if study.cost(study.plan) > LARGE and "groups" not in vars(study):
        talks = (s for body in study.plan.bodies for s in body if isinstance(s, _TALKS) and s.source)
        return str(getattr(next(talks, None), "source", None) or "")
    return study.line("channel", "dma", "control") or study.line()


def _hidden(study: Study, free: int, line: str) -> Iterator[Finding]:
    """Messages in parts: all but one part of them, or of the work if that is shorter, at the same time."""
    alone = study.plan_ps(_rewritten(study.plan, _idle)) or 0
    talk, parts = study.base_ps - free, max(2, _meetings(study)) if _meetings(study) != 1 else PARTS
    shorter = min(talk, max(0, free - study.launch_ps))
    yield from study.finding(
        "exposed communication", max(alone, study.base_ps - shorter * (1 - 1 / parts)), bound=True,
        how=f"timed again without messages: {format_time(free)}, and without work: {format_time(alone)}; "
        f"all but one part in {parts} of the shorter hidden",
        bottleneck="exposed communication: nothing is computed while messages travel",
        reason=f"messages add {format_time(talk)} to {format_time(free)} of work ({study.result.model})",
        step=f"overlap: divide what line {line.rpartition(':')[2]} communicates into {parts} parts, begin "
        "with the work that needs only the first, and communicate the next part meanwhile",
        source=line,
    )  # fmt: skip


def less_to_send(study: Study, why: str = "") -> Iterator[Finding]:
    """Messages that cannot be hidden behind the work of the program."""
    free, line = without_messages(study), _line(study)
    if free is not None:
        yield from study.finding(
            "exposed communication", free, "timed again without messages", bound=True,
            kind=Kind.ADVICE,
            bottleneck="exposed communication: nothing is computed while messages travel",
            reason=f"messages add {format_time(study.base_ps - free)} to {format_time(free)} of work "
            f"({study.result.model}){why}",
            step="hide it behind work that does not need it (the next layer), or communicate less: "
            "T.reduce_scatter where the next step takes parts, a smaller dtype",
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
    yield from less_to_send(study, "; in parts it was not faster")


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
        return
    for one, count in overlap.independent(study.lowered.source):
        kind = n.PLANNER_NAMES[one.kind]
        each, together = (study.collective_ps(kind, one, share) for share in (1.0, float(count)))
        yield from study.finding(
            "small messages", study.base_ps - count * each + together,
            f"the time of {count} collectives replaced by that of one", bound=True, kind=Kind.CAUSE,
            bottleneck="latency of messages: many small collectives, one after the other",
            reason=f"{count} collectives do not need each other, and each has its own start",
            step=f"put what they take side by side in one tile, and T.{one.kind} that",
            source=changes.source_line(one),
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
        kind=Kind.ADVICE,
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

    return changes.replaced(program, {id(one): staged(one) for one in wanted})


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
