"""Rules about pipelines: too few buffers to hide latency, or so many that few blocks are resident."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from megatile.plan import model as pm
from megatile.plan.statements import rewritten, write_of
from megatile.verdict import changes
from megatile.verdict.arguments import arguments_of
from megatile.verdict.blocks import level_of
from megatile.verdict.model import Finding
from megatile.verdict.study import OutOfBudget, Study, rule

MAX_STAGES = 5
"""Pipeline stages to try."""
LESS = 0.01
"""The share of the time that one more stage must save for another to be tried."""


@rule("pipeline stages", costly=True)
def pipeline_stages(study: Study) -> Iterator[Finding]:
    """Copies and computation of a loop take turns."""
    if study.lowered is None:
        return
    found = list(_more_stages(study))
    yield from found or _more_buffers(study)


def _more_buffers(study: Study) -> Iterator[Finding]:
    """An argument says how many buffers there are."""
    buffers = arguments_of(study).named("stages")
    trial = arguments_of(study).best(buffers) if buffers else None
    if trial is not None:
        text = arguments_of(study).text(trial)
        if all(value < arguments_of(study).given[name] for name, value in trial.changes.items()):
            yield from _fewer_buffers(study, trial.time_ps, f"program made and timed again with {text}", text)
            return
        yield from study.finding(
            "pipeline stages", trial.time_ps, f"program made and timed again with {text}",
            bottleneck="exposed latency: too few buffers between copies and computation",
            reason=f"{study.share('dma'):.0%} of the critical path is copies; tensor engines are busy "
            f"{_use(study, 'tensor'):.0%}, vector engines {_use(study, 'vector'):.0%}",
            step=text, source=study.line("dma"),
        )  # fmt: skip


def _fewer_buffers(study: Study, ps: int | None, how: str, step: str) -> Iterator[Finding]:
    level = level_of(study)
    yield from study.finding(
        "occupancy", ps, how,
        bottleneck="low occupancy: pipeline buffers leave room for few resident blocks",
        reason=f"{level}; fewer buffers let more blocks be resident, which hide each other's latency",
        step=step, source=study.line("dma"),
    )  # fmt: skip


def _more_stages(study: Study) -> Iterator[Finding]:
    """Loops as pipelines of more stages."""
    assert study.lowered is not None
    loops = changes.pipelines(study.lowered.source)
    if not loops:
        return
    now = min(loop.stages for loop in loops)
    times: dict[int, int] = {}
    for stages in range(max(2, now + 1), MAX_STAGES + 1):
        try:
            ps = study.program_ps(partial(changes.with_stages, stages=stages))
        except OutOfBudget:
            break
        if ps is not None:
            slower = ps > (1 - LESS) * min(times.values(), default=study.base_ps if now > 1 else 2 * ps)
            times[stages] = ps
            if slower:
                break
    fewer = study.program_ps(partial(changes.with_stages, stages=2)) if now > 2 else None
    least = min(times.values(), default=None)
    if fewer is not None and (least is None or fewer < least):
        yield from _fewer_buffers(
            study, fewer, "program timed again with num_stages=2", "T.Pipelined(…, num_stages=2)"
        )
        return
    stages = next((s for s, ps in times.items() if least is not None and ps <= least * 1.02), 0)
    loop = min(loops, key=lambda one: one.stages)
    yield from study.finding(
        "pipeline stages", times.get(stages), f"program timed again with num_stages={stages}",
        bottleneck="exposed latency: copies and computation of the loop take turns",
        reason=f"the loop has {now} stage{'' if now == 1 else 's'}, and {study.share('dma'):.0%} of the "
        f"critical path is copies; tensor engines are busy {_use(study, 'tensor'):.0%}, vector engines "
        f"{_use(study, 'vector'):.0%}",
        step=f"T.Pipelined(…, num_stages={stages})",
        source=changes.source_line(loop),
    )  # fmt: skip


def _use(study: Study, engine: str) -> float:
    return study.result.use(engine) if engine in study.result.busy else 0.0


@rule("buffers")
def buffers(study: Study) -> Iterator[Finding]:
    """A producer waits until what it has written before is read: it has too few buffers."""
    flags = {s.flag: s for stream in study.plan.streams for s in _before_writes(study.plan, stream.body)}
    if flags:
        streams = tuple(
            replace(stream, body=rewritten(stream.body, lambda s: None if _waits_for(s, flags) else s))
            for stream in study.plan.streams
        )
        first = next(iter(flags.values()))
        yield from study.finding(
            "pipeline stages", study.plan_ps(replace(study.plan, streams=streams)),
            f"Plan timed again without waiting for {', '.join(sorted(flags))}", bound=True,
            bottleneck="exposed latency: too few buffers, so that a producer waits for its consumer",
            reason=f"it waits for '{first.flag}' before it writes a buffer again",
            step="one more buffer (slot), counted modulo their number, with a flag each",
            source=str(first.source or ""),
        )  # fmt: skip


def _waits_for(s: Any, flags: dict[str, pm.Wait]) -> bool:
    return isinstance(s, pm.Wait) and s.flag in flags


def _before_writes(plan: pm.Plan, body: tuple[Any, ...]) -> Iterator[pm.Wait]:
    """Waits after which a stream first writes a tile that others read, and does not read it before."""
    shared = {r.tile for b in plan.bodies for s in b if isinstance(s, pm.Compute) for r in s.reads}
    written = {w.tile for b in plan.bodies for s in b if (w := write_of(s)) is not None}
    waiting: list[pm.Wait] = []
    for s in body:
        if isinstance(s, (pm.Loop, pm.If)):
            inner = [*_before_writes(plan, s.body)]
            inner += _before_writes(plan, s.orelse) if isinstance(s, pm.If) else []
            yield from inner
            alone = isinstance(s, pm.If) and len(s.body) == 1 and isinstance(s.body[0], pm.Wait)
            waiting += [s.body[0]] if alone else []  # type: ignore[list-item]
        elif isinstance(s, pm.Wait):
            waiting.append(s)
        elif isinstance(s, pm.Compute) and waiting:
            local = {t.name for t in plan.tiles if t.role == "local"}
            tensors = {t.name for t in plan.tiles} - local - written
            loads = (
                s.engine == "dma"
                and s.write.tile in shared & local
                and all(r.tile in tensors for r in s.reads)
            )
            yield from waiting if loads else ()
            waiting = []
