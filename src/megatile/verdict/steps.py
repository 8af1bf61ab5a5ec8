"""Rules about the loops of a Plan, whatever it was written in: short steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatile.core.expr import Symbol, eq, symbols, trips
from megatile.ir import nodes as n
from megatile.plan import model as pm
from megatile.plan.statements import rewritten, write_of
from megatile.verdict import changes
from megatile.verdict.model import MIN_GAIN, Finding
from megatile.verdict.study import OutOfBudget, Study, rule

FACTORS = (4, 16, 64)
"""How many steps of a loop are tried as one."""


@rule("short loads")
def larger_steps(study: Study) -> Iterator[Finding]:
    """A loop moves so little in each step that starting it takes the time."""
    if study.lowered is not None:
        return
    times: dict[int, int] = {}
    for factor in FACTORS:
        plan = _joined(study.plan, factor)
        try:
            ps = study.plan_ps(plan) if plan is not None else None
        except OutOfBudget:
            break
        if ps is not None:
            times[factor] = ps
    best = min(times, key=lambda f: times[f], default=0)
    loops = [s for body in study.plan.bodies for s in body if isinstance(s, pm.Loop) and _simple(s)]
    talks = any(isinstance(s, pm.Send) for loop in loops for s in loop.body)
    yield from study.finding(
        "small messages" if talks else "short steps", times.get(best),
        f"Plan timed again with {best} steps of the loop as one",
        bottleneck="latency of messages: each step of the loop sends little, and waits for what comes back"
        if talks else "short steps: each loads and stores little, and waits for the memory's answer",
        reason=f"{study.share('dma'):.0%} of the critical path is copies; of memories, links and compute "
        f"engines the busiest is {study.busiest[0]} ({study.busiest[1]:.0%})",
        step=f"{best} times as many elements in each load, store and message, and as many times fewer steps",
        source=str(loops[0].source or "") if loops else "",
    )  # fmt: skip


@rule("small copies")
def copies_of_several_steps(study: Study) -> Iterator[Finding]:
    """A serial loop copies a little in every step, though only the computation needs the one before it."""
    times, line = dict[int, int](), ""
    loops = n.each(n.Loop, study.lowered.source.body) if study.lowered is not None else ()
    copies = (m for loop in loops if loop.kind == "serial" for m in n.each(n.Copy, loop.body))
    serial = set(map(changes.source_line, copies))
    for factor in FACTORS if serial else ():
        plan, line = _seldom(study.plan, factor, serial)
        ps = study.plan_ps(plan) if plan is not study.plan else None
        if ps is None or ps > (1 - MIN_GAIN) * min(times.values(), default=study.base_ps):
            break
        times[factor] = ps
    best = min(times, key=lambda f: times[f], default=0)
    busy = round(study.busiest[1] * study.base_ps)  # as many bytes move as before
    yield from study.finding(
        "small copies", max(times[best], busy) if best else None,
        f"Plan timed again with copies for {best} steps at a time", bound=True,
        bottleneck="small copies: every step of a serial loop waits for its own",
        reason=f"{study.share('dma'):.0%} of the critical path is copies; what they move does not depend on "
        "the steps before",
        step=f"load what {best} steps need in one T.copy, take it from the tile step by step, and store "
        "their results together", source=line,
    )  # fmt: skip


def _seldom(plan: pm.Plan, factor: int, serial: set[str]) -> tuple[pm.Plan, str]:
    """Return the Plan whose serial loops without products and messages copy between tensors and tiles once in
    so many steps, and then as many times the bytes; and the line of such a copy."""
    tensors, lines = {t.name for t in plan.tiles if t.role != "local"}, list[str]()
    written = {w.tile for body in plan.bodies for s in body if (w := write_of(s)) is not None}

    def change(s: Any) -> Any:
        rounds = trips(s) if isinstance(s, pm.Loop) else None
        inside = s.body if rounds is not None and len(rounds) >= factor else ()
        if any(isinstance(m, (pm.Loop, pm.Send)) or getattr(m, "engine", "") == "tensor" for m in inside):
            return s
        if any(r.at is not None for m in inside if isinstance(m, pm.Compute) for r in (*m.reads, m.write)):
            return s
        body = [_once_in(m, s, factor) if _moves_on(m, s.index) else m for m in inside]
        return replace(s, body=tuple(body)) if inside else s

    def _moves_on(m: Any, index: str) -> bool:
        if not isinstance(m, pm.Compute) or m.engine != "dma" or str(m.source) not in serial:
            return False
        there = [r for r in (m.reads[0], m.write) if r.tile in tensors]
        loads = m.write.tile not in tensors
        free = len(there) == 1 and not (loads and there[0].tile in written)
        moving = free and any(index in symbols(e) for e in there[0].start)
        lines.extend([str(m.source or "")] if moving else [])
        return moving

    def _once_in(m: pm.Compute, loop: pm.Loop, factor: int) -> pm.If:
        large = replace(m, work=replace(m.work, bytes=m.work.bytes * factor))
        return pm.If(eq((Symbol(loop.index) - loop.start) % (loop.step * factor), 0), (large,))

    streams = tuple(replace(x, body=rewritten(x.body, change)) for x in plan.streams)
    return (replace(plan, streams=streams) if lines else plan), next(iter(lines), "")


def _simple(loop: pm.Loop) -> bool:
    """Whether a loop has nothing but commands on engines, and carries nothing but tiles."""
    rounds = trips(loop)
    plain = all(isinstance(s, (pm.Compute, pm.Free, pm.Send, pm.Receive)) for s in loop.body)
    carries = any(isinstance(c, pm.CarryInt) for c in loop.carries)
    return rounds is not None and len(rounds) > 1 and plain and not carries and bool(_moving(loop))


def _moving(loop: pm.Loop) -> set[str]:
    """The tiles that go with the loop's index: loaded by it, or computed of such elementwise."""
    found: set[str] = set()
    for s in loop.body:
        if isinstance(s, pm.Receive) and s.name is not None:
            found.add(s.name)
        if not isinstance(s, pm.Compute):
            continue
        loads = s.engine == "dma" and any(loop.index in symbols(e) for r in s.reads for e in r.start)
        if loads or (s.engine != "tensor" and any(r.tile in found for r in s.reads)):
            found.add(s.write.tile)
    return found


def _joined(plan: pm.Plan, factor: int) -> pm.Plan | None:
    """The Plan with so many steps of its simple loops as one."""
    longer: dict[str, int] = {}
    wider = set[str]()

    def change(s: Any) -> Any:
        rounds = trips(s) if isinstance(s, pm.Loop) and _simple(s) else None
        if rounds is None or len(rounds) % factor:
            return s
        moving = _moving(s)
        body = tuple(_larger(c, s.index, moving) if isinstance(c, pm.Compute) else message(c) for c in s.body)
        return replace(s, body=body, step=s.step * factor)

    def message(s: Any) -> Any:
        if isinstance(s, (pm.Send, pm.Receive)):
            wider.add(s.channel)
            s = replace(s, work=replace(s.work, bytes=s.work.bytes * factor))
        return replace(s, shape=(*s.shape[:-1], s.shape[-1] * factor)) if isinstance(s, pm.Receive) else s

    def _larger(s: pm.Compute, index: str, moving: set[str]) -> pm.Compute:
        every = (*s.reads, s.write)
        if not any(r.tile in moving or any(index in symbols(e) for e in r.start) for r in every):
            return s
        for at, r in enumerate(every):
            if r.tile in moving:  # the second operand of a product has its steps in rows
                longer[r.tile] = 0 if s.engine == "tensor" and at == 1 else longer.get(r.tile, -1)

        def region(r: pm.Region) -> pm.Region:
            sizes = [e * factor if index in symbols(a) else e for a, e in zip(r.start, r.shape, strict=True)]
            return replace(r, shape=tuple(sizes))

        work = replace(s.work, bytes=s.work.bytes * factor, flops=s.work.flops * factor)
        return replace(s, reads=tuple(map(region, s.reads)), write=region(s.write), work=work)

    streams = tuple(replace(stream, body=rewritten(stream.body, change)) for stream in plan.streams)
    if streams == plan.streams:
        return None
    channels = tuple(
        replace(c, slot_bytes=c.slot_bytes * factor) if c.name in wider else c for c in plan.channels
    )
    tiles = tuple(_longer(t, longer.get(t.name), factor) for t in plan.tiles)
    return replace(plan, streams=streams, tiles=tiles, channels=channels)


def _longer(tile: pm.Tile, at: int | None, factor: int) -> pm.Tile:
    if at is None or tile.role != "local" or not tile.shape:
        return tile
    shape = list(tile.shape)
    shape[at] *= factor
    return replace(tile, shape=tuple(shape))
