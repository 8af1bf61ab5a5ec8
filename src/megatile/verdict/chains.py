"""Rules about units, devices and blocks that work one after the other: each waits for the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.expr import Expr, known, linear, walk
from megatile.core.quantities import format_time
from megatile.ir import nodes as n
from megatile.ir.expr import Coord
from megatile.ir.program import Program
from megatile.plan import model as pm
from megatile.sim.instructions import COPY, SEND, WORK
from megatile.verdict import changes
from megatile.verdict.arguments import arguments_of
from megatile.verdict.blocks import kernel_line, level_of
from megatile.verdict.few_blocks import loads_ps
from megatile.verdict.imbalance import compute_line, work_of
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

AT_ONCE = 1.3
"""Units that work at one time on average, below which they take turns."""
MIN_SHARE = 0.3
"""The share of the time that must be work for either."""
PARTS = (2, 4, 8)
"""Into how many parts work may be cut that is passed on from unit to unit."""
BINS = 512
"""Parts of the time in which a device works or does not."""
MIN_DEVICES = 3
"""Devices from which on taking turns is called a pipeline."""
PER_STAGE = 4
"""Micro-batches for each stage, at most: then few devices wait."""


class Turns(NamedTuple):
    """Devices that work one after the other."""

    devices: int
    longest_ps: float
    """How long the device works that works longest,"""
    together_ps: float
    """and all of them, one after the other."""

    def micro_batched(self, study: Study) -> tuple[float, int] | None:
        """Return the time in the micro-batches that are fastest, and how many these are."""
        assert study.lowered is not None
        launch, level = study.lowered.source.launch, level_of(study)
        blocks = prod(launch.extents(launch.dispatch))
        units = level.units // study.plan.units
        passed_on = max(0.0, study.base_ps - study.launch_ps - self.together_ps) / (self.devices - 1)
        times = {}
        for parts in range(2, PER_STAGE * self.devices + 1):
            if blocks % parts == 0:
                fewer = [  # waves of a part against those of all: on units alone, and where some share one
                    -(-blocks // parts // places) / -(-blocks // places)
                    for places in (units, units * level.slots)
                ]
                stage = self.longest_ps * sqrt(fewer[0] * fewer[1]) + passed_on / parts
                times[parts] = study.launch_ps + (self.devices + parts - 1) * stage
        best = min(times, key=lambda parts: times[parts], default=None)
        return None if best is None else (times[best], best)


@cached_in_owner
def turns_of(study: Study) -> Turns | None:
    """Return the devices that work one after the other; None where several work at a time."""
    found = work_of(study) if study.lowered is not None and study.plan.units >= MIN_DEVICES else None
    if found is None or level_of(study) is None or not len(found[0]):
        return None
    unit, start, end = (column[found[0] >= 0] for column in found)
    width = max(1, -(-study.base_ps // BINS))
    changes = np.zeros((study.plan.units, BINS + 2), np.int64)
    np.add.at(changes, (unit, np.minimum(start // width, BINS)), 1)
    np.add.at(changes, (unit, np.minimum(end // width, BINS) + 1), -1)
    works = np.cumsum(changes, axis=1) > 0
    spent, some = works.sum(axis=1), works.any(axis=0).sum()
    devices = int((spent > 0).sum())
    if devices < MIN_DEVICES or spent.sum() > AT_ONCE * some:
        return None
    if some * width < MIN_SHARE * (study.base_ps - study.launch_ps):
        return None
    return Turns(devices, float(np.max(spent) * width), float(some * width))


@rule("devices take turns")
def devices_take_turns(study: Study) -> Iterator[Finding]:
    """Each device begins when the one before it has passed on all that it has done."""
    turns = turns_of(study)
    parts = turns.micro_batched(study) if turns is not None else None
    if turns is None or parts is None:
        return
    (took, count), spent = parts, format_time(turns.longest_ps)
    yield from study.finding(
        "devices take turns", took, bound=True,
        how=f"formula: {turns.devices} + {count} - 1 steps, each 1/{count} of the {spent} that one works, "
        "in whole waves of blocks, and of its message",
        bottleneck=f"a pipeline without micro-batches: of {turns.devices} devices, one works at a time",
        reason="the times in which devices work do not overlap: each waits for the whole batch of the one "
        "before it",
        step=f"divide the batch into {count} micro-batches and pass each on as soon as it is done: device d "
        "works on one while device d - 1 works on the next",
        source=kernel_line(study),
    )  # fmt: skip


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
        + (f": {arguments.step(trial)}" if trial is not None else ""), source=compute_line(study),
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


@rule("chain of blocks")
def chain_of_blocks(study: Study) -> Iterator[Finding]:
    """Every block waits for a signal of the block before it."""
    found = links(study.lowered.source) if study.lowered is not None else []
    alone = study.program_ps(lambda program: changes.without(program, found)) if found else None
    if alone is None:
        return
    (wait, *_), again = found, loads_ps(study)
    yield from study.finding(
        "chain of blocks", alone + again, bound=True,
        how=f"program timed again without waiting ({format_time(alone)}), and {format_time(again)} to load "
        "all once more",
        bottleneck="blocks wait for each other in a chain: each for a signal of the one before it",
        reason="the signals go from block to block one after the other, however many blocks run at a time",
        step="three phases: a sum of each block's part, running sums of these, then each part from its own "
        "(reduce, then scan)",
        source=changes.source_line(wait),
    )  # fmt: skip


def links(program: Program) -> list[n.Node]:
    """Return the waits of blocks for another block's signal of the same flag, and these signals, where each
    waits once and then signals."""
    found: list[n.Node] = []
    for region in n.each(n.ScaleRegion, program.body):
        inside = list(n.walk(region.body)) if region.scale == program.launch.dispatch else []
        repeated = {id(m) for loop in n.each(n.Loop, region.body) for m in n.walk(loop.body)
                    if loop.kind != "persistent"}  # fmt: skip
        once = [m for m in inside if id(m) not in repeated]
        for at, wait in enumerate(once):
            if isinstance(wait, n.Wait):
                later = [m for m in once[at:] if isinstance(m, n.Signal) and m.flag == wait.flag]
                mine = [m for m in later if _of_next(m, wait)]
                found += [wait, *mine] if mine else ()
    return found


def _of_next(signal: n.Signal, wait: n.Wait) -> bool:
    """Whether what a block signals is waited for by a block at some distance."""
    if signal.dst is not None:
        return any(isinstance(p, Coord) and _distance(signal.dst, p) for p in walk(signal.dst))
    grid = any(isinstance(p, Coord) for e in signal.index for p in walk(e))
    return grid and any(_distance(a, b) for a, b in zip(signal.index, wait.index, strict=True))


def _distance(one: Expr, other: Expr) -> int:
    """How much larger one place is than the other, whatever the block; 0: that is not known."""
    terms, distance = linear(one - other)
    return 0 if any(terms.values()) else distance
