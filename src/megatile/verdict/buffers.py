"""Rules about pipelines: too few buffers to hide latency, or so many that few blocks are resident."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

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
