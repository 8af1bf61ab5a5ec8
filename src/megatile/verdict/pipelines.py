"""Rule about pipelines of devices without micro-batches, where one device works at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt
from typing import NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.quantities import format_time
from megatile.verdict.blocks import kernel_line, level_of
from megatile.verdict.imbalance import AT_ONCE, MIN_SHARE, work_of
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

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
    return Turns(devices, float(spent.max() * width), float(some * width))


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
