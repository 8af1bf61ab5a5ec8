"""Rule about uneven units: one has more to do than the others. Plans in which all have the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from megatile.core.expr import Const, symbols, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Rank
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.sim.instructions import WORK
from megatile.sim.state import NONE, Recorded
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

MAX_ROUNDS = 64
"""Rounds of a loop around others in which these are counted."""
Env = dict[str, Any]
UNEVEN = 1.3
"""The work of the unit that has most, against the mean, from which on it is a symptom."""


def work_of(study: Study, *kinds: int) -> tuple[Any, Any, Any] | None:
    """Return of every command of these kinds (none: of compute engines) the unit of the first level, its
    start and its end."""
    plan, record = study.plan, study.result.record
    if plan.units < 2 or not len(record.rows):
        return None
    rows = record.rows
    computes = (rows[:, Recorded.kind] == WORK) & (rows[:, Recorded.path] == NONE)
    rows = rows[np.isin(rows[:, Recorded.kind], kinds) if kinds else computes]
    who = rows[:, Recorded.actor] - record.launched.first
    unit = np.full(len(rows), -1)
    offsets = record.launched.offsets
    for first, last in pairwise(offsets):
        mine = (who >= first) & (who < last)
        unit[mine] = (who[mine] - first) * plan.units // max(1, last - first)
    return unit, rows[:, Recorded.start], rows[:, Recorded.end]


def uneven_work(study: Study) -> Any | None:
    """Return how long each unit of the first level works, if one has much more to do than the others."""
    found = work_of(study)
    if found is None:
        return None
    unit, start, end = found
    work = np.bincount(unit[unit >= 0], (end - start)[unit >= 0], study.plan.units)
    return work if work.max() > UNEVEN * work.mean() else None


@rule("unit balance")
def unit_balance(study: Study) -> Iterator[Finding]:
    """One device, or PE, has more to do than the others, which wait for it."""
    found, work = work_of(study), uneven_work(study)
    if found is None or work is None:
        return
    unit, start, end = found
    most, share = int(work.argmax()), float(work.mean() / work.max())
    mine = unit == most
    spent = min(float(work[most]), float(end[mine].max() - start[mine].min()))
    least = study.plan_ps(_without_work(study.plan)) or 0
    yield from study.finding(
        "unit balance", max(least, study.base_ps - spent * (1 - share)),
        "as if its work were shared by all units", bound=True,
        bottleneck=f"load imbalance: {study.plan.scale} {most} works, and the others wait",
        reason=f"{study.plan.scale} {most} has {work.max() / work.mean():.2g}× the mean work of all "
        f"{study.plan.units}",
        step=f"divide that work over all {study.plan.units} units{_zigzag(study)}",
        source=compute_line(study),
    )  # fmt: skip


def _without_work(plan: pm.Plan) -> pm.Plan:
    """The Plan without computations."""
    gone = lambda s: None if isinstance(s, pm.Compute) and s.engine != "dma" else s  # noqa: E731
    return replace(plan, streams=tuple(replace(x, body=rewritten(x.body, gone)) for x in plan.streams))


def _zigzag(study: Study) -> str:
    """How to divide what grows with the number of the unit."""
    loops = n.each(n.Loop, study.lowered.source.body) if study.lowered is not None else ()
    grows = any(isinstance(p, Rank) for loop in loops for e in (loop.start, loop.stop) for p in walk(e))
    return ': T.view(…, layout=T.Shard(0, order="zigzag")), as loops grow with the rank' if grows else ""


def compute_line(study: Study) -> str:
    """The source line of compute commands with most of the critical path."""
    return study.line("vector", "tensor", "scalar") or study.line()


def evened(plan: pm.Plan, level: str) -> pm.Plan | None:
    """Return the Plan whose loops of unequal length, in the streams of a level, have the mean length of all
    units; None where there is no such loop, or data decide."""
    streams = []
    for stream in plan.streams:
        units = np.concatenate([np.arange(*run) for run in stream.units])
        body = _even(stream.body, [{"unit": units}]) if stream.level == level else stream.body
        streams.append(replace(stream, body=body))
    changed = replace(plan, streams=tuple(streams))
    return None if changed == plan else changed


def _even(body: tuple[Any, ...], around: list[Env]) -> tuple[Any, ...]:
    """Return statements with even loops; ``around`` has what is known in each round of the loops around."""
    made = []
    for s in body:
        if isinstance(s, pm.If):
            s = replace(s, body=_even(s.body, around), orelse=_even(s.orelse, around))
        elif isinstance(s, pm.Loop):
            lengths = [_length(s, env) for env in around]
            if all(length is not None for length in lengths):
                rounds = np.concatenate([np.atleast_1d(length) for length in lengths])
                most = int(rounds.max(initial=0))
                inner = [
                    env | {s.index: s.start.evaluate(env) + at * s.step.evaluate(env)}
                    for env in around
                    for at in range(min(most, max(1, MAX_ROUNDS // len(around))))
                ]
                stop = s.stop
                if rounds.size and rounds.min() < most:
                    stop = s.start + s.step * Const(max(1, round(float(rounds.mean()))))
                s = replace(s, body=_even(s.body, inner or around), stop=stop)
        made.append(s)
    return tuple(made)


def _length(loop: pm.Loop, env: Env) -> Any:
    """Return the trip counts of a loop, one per unit; None where they are unknown."""
    if any(symbols(e) - env.keys() for e in (loop.start, loop.stop, loop.step)):
        return None
    start, stop, step = (e.evaluate(env) for e in (loop.start, loop.stop, loop.step))
    return np.maximum(0, -((start - stop) // step))
