"""Rules about units that wait for each other: one has more to do, all take turns, buffers are too few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from megatile.core.expr import known, walk
from megatile.ir import nodes as n
from megatile.ir.expr import Rank
from megatile.plan import model as pm
from megatile.plan.statements import rewritten, write_of
from megatile.sim.instructions import COPY, SEND, WORK
from megatile.sim.state import NONE, Recorded
from megatile.verdict.arguments import arguments_of
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

UNEVEN = 1.3
"""The work of the unit that has most, against the mean, from which on it is a symptom."""
AT_ONCE = 1.3
"""Units that work at one time on average, below which they take turns."""
MIN_SHARE = 0.3
"""The share of the time that must be work for either."""
PARTS = (2, 4, 8)
"""Into how many parts work may be cut that is passed on from unit to unit."""


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
        step=f"divide that work over all {study.plan.units} units{_zigzag(study)}", source=_line(study),
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


def _line(study: Study) -> str:
    """The source line of compute commands with most of the critical path."""
    return study.line("vector", "tensor", "scalar") or study.line()


def _chain(found: tuple[Any, Any, Any] | None) -> tuple[int, float] | None:
    """Return of commands that go one after the other how many units have them, and how long all take; None
    where several go at a time."""
    if found is None or not len(found[0]):
        return None
    unit, start, end = found
    units, order = len(np.unique(unit)), np.argsort(start)
    reach = np.maximum.accumulate(end[order])
    begun = np.maximum(start[order], np.concatenate(([0], reach[:-1])))
    one_by_one = float(np.maximum(0, reach - begun).sum())
    if units < 2 or (end - start).sum() > AT_ONCE * one_by_one:
        return None
    return units, float(end.max() - start.min())


@rule("units take turns", costly=True)
def take_turns(study: Study) -> Iterator[Finding]:
    """No two units work at the same time: each waits for what the one before it passes on."""
    if study.plan.levels:
        return
    chain = _chain(work_of(study, SEND)) or _chain(work_of(study, WORK, COPY, SEND))
    if chain is None or chain[1] < MIN_SHARE * (study.base_ps - study.launch_ps):
        return
    units, together = chain
    arguments = arguments_of(study)
    trial = arguments.best(arguments.named("tile", "stages", "other")) if study.lowered is not None else None
    hop, start = together / units, _start_ps(study)
    times = {k: ((hop - start) / k + start) * (units - 1 + k) for k in PARTS}
    parts = min(times, key=lambda k: times[k])
    ideal = study.base_ps - together + times[parts]
    yield from study.finding(
        "units take turns", ideal if trial is None else trial.time_ps,
        f"as if the work went from unit to unit in {parts} parts" if trial is None else
        f"program made and timed again with {arguments.text(trial)}", bound=trial is None,
        bottleneck=f"units take turns: of {units}, one works at a time",
        reason="each waits for the whole result of the one before it",
        step="divide the work into parts and pass each on as soon as it is done, or let two chains meet"
        + (f": {arguments.step(trial)}" if trial is not None else ""), source=_line(study),
    )  # fmt: skip


def _start_ps(study: Study) -> float:
    """What a message costs beside its bytes, as far as the critical path shows it."""
    rates = [net.effective_bandwidth for net in study.hda.networks]
    rows = [row for row in study.groups if row[1].split(".")[0] in ("dma", "channel") and row[2]]
    steps, spent = sum(row[3] for row in rows), sum(row[4] for row in rows)
    lines = {row[2] for row in rows}
    sizes = [known(s.work.bytes) or 0 for body in study.plan.bodies for s in body
             if isinstance(s, (pm.Compute, pm.Send)) and str(s.source or "") in lines]  # fmt: skip
    if not steps or not rates or not sizes:
        return 0.0
    return max(0.0, spent / steps - max(sizes) / max(rates) * 1e12)


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
