"""Rules about how evenly the work of a launch falls on its units: long blocks, phases of few."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from megatile.core.expr import trips
from megatile.core.quantities import format_time
from megatile.ir import nodes as n
from megatile.verdict import changes
from megatile.verdict.grid import independent_parts, over_grid, parts_in_grid
from megatile.verdict.imbalance import evened, uneven_work
from megatile.verdict.model import Finding
from megatile.verdict.study import Study, rule

IDLE = 0.08
"""The share of the units' time, idle at the end, from which on that is a symptom."""
UNEVEN = 1.3
"""The longest block against the middle one."""
LONG = 4.0
"""The longest block against the median one, from which on it is the time even where units have no block."""


def level_of(study: Study) -> Any:
    """The level whose instances run in waves, with its figures, or None."""
    if study.figures is None:
        return None
    return next((one for one in study.figures.levels if one.slots is not None), None)


def idle_share(study: Study) -> tuple[float, float]:
    """The share of the units' time after their last block, and the largest block against the middle one."""
    found, level = study.instances, level_of(study)
    if found is None or level is None or not len(found[0]):
        return 0.0, 1.0
    place, end, work, _ = found
    last = np.zeros(level.units, np.int64)
    _, where = np.unique(place, return_inverse=True)
    np.maximum.at(last, where % level.units, end)
    idle = float((end.max() - last).sum()) / max(1, level.units * study.base_ps)
    return idle, float(work.max()) / max(1.0, float(np.median(work)))


@rule("block balance")
def balance(study: Study) -> Iterator[Finding]:
    """Long blocks begin late, or one phase has few blocks, and the other units wait for them."""
    few = list(_phase_of_few(study))
    yield from few
    if few:
        return
    idle, uneven = idle_share(study)
    level = level_of(study)
    if idle < IDLE or study.lowered is None or uneven_work(study) is not None:
        return
    if level.instances <= level.units * level.slots:
        together = list(_unequal_work(study, level, idle))
        yield from together
        if together or (level.instances < level.units and uneven < LONG):
            return
    if uneven < UNEVEN:
        return
    ps: float | None = study.program_ps(lambda p: changes.with_hint(p, "reverse_blocks"))
    how, bound = "program timed again with the last block first", False
    step = "begin with the blocks that have most to do: count the grid's index down"
    shared = list(_shared_rounds(study, uneven, idle)) if ps is None or ps > study.base_ps * 0.95 else []
    yield from shared
    if shared:
        return
    if ps is None or ps > study.base_ps * 0.95:
        ps, how, bound = (
            max(study.base_ps * (1 - idle), _dealt_out(study, level)),
            "as if blocks were equal",
            True,
        )
        step = "divide the long blocks, or deal them out evenly (T.Persistent)"
    yield from study.finding(
        "block balance", ps, how, bound=bound,
        bottleneck="load imbalance between blocks: units wait at the end",
        reason=f"the largest block has {uneven:.1f}× the work of the median one, and units are idle for "
        f"{idle:.0%} of the time after their last block ({level})",
        step=step, source=kernel_line(study),
    )  # fmt: skip


def _shared_rounds(study: Study, uneven: float, idle: float) -> Iterator[Finding]:
    """Rounds of the loop of a block that need nothing of each other could be blocks of their own."""
    assert study.lowered is not None
    loop = independent_parts(study.lowered.source)
    if loop is not None:
        yield from study.finding(
            "block balance", study.program_ps(parts_in_grid),
            f"program timed again with a block for each '{loop.var}'",
            bottleneck="unequal work: the other blocks wait for the busiest",
            reason=f"the largest block has {uneven:.1f}× the work of the median one, and units are idle for "
            f"{idle:.0%} of the time after their last block",
            step=f"a dimension of the grid in place of the loop over '{loop.var}': blocks without work end "
            "at once",
            source=changes.source_line(loop),
        )  # fmt: skip


def _unequal_work(study: Study, level: Any, idle: float) -> Iterator[Finding]:
    """Blocks of one phase are all resident at once: the busiest sets the time of the launch."""
    assert study.instances is not None
    place, end, work, _ = study.instances
    most = float(work.max()) / max(1.0, float(work.mean()))
    used, unit = np.unique(place, return_inverse=True)
    empty = (1 - len(used) / level.units) * float(end.max()) / study.base_ps
    if most < UNEVEN or len(_block_regions(study)) > 1 or 2 * empty > idle:  # mostly units without a block
        return
    each = np.bincount(unit, work)
    even = study.launch_ps + (study.base_ps - study.launch_ps) * float(each.mean() / max(1.0, each.max()))
    loops = any(isinstance(m, n.Loop) for r in _block_regions(study) for m in r.body)
    equal = evened(study.plan, next(x.name for x in study.plan.levels if x.slots is not None))
    timed = study.plan_ps(equal) if equal is not None else None
    yield from study.finding(
        "block balance", max(even, study.base_ps * _shared_use(study)) if timed is None else timed,
        "as if blocks had equal work, at the rates of the memories that they share" if timed is None else
        "Plan timed again with loops of the mean length in all blocks", bound=True,
        bottleneck="unequal work: the other blocks wait for the busiest",
        reason=f"the busiest of {len(work)} blocks has {most:.1f}× the mean work, and units are idle for "
        f"{idle:.0%} of the time after their last block ({level})",
        step=f"pair long items with short ones: block b takes items b, {2 * level.instances - 1} - b, "
        f"{2 * level.instances} + b, … of those that grow, not a run of neighbours" if loops else
        "divide the long blocks, or deal them out evenly (T.Persistent)", source=kernel_line(study),
    )  # fmt: skip


def _shared_use(study: Study) -> float:
    """The share of the time in which the busiest memory works that all blocks load from."""
    tensors = {study.hda.memory(t.memory).name for t in study.plan.tiles if t.role != "local"}
    return max((study.busy(m.name) for m in study.hda.memories if m.cache or m.name in tensors), default=0.0)


def _dealt_out(study: Study, level: Any) -> float:
    """The time of as many blocks like the median one as have the work of all, in whole waves."""
    if study.instances is None:
        return 0.0
    _, _, work, took = study.instances
    waves = -(-float(work.sum()) / max(1.0, float(np.median(work))) // (level.units * level.slots))
    return study.launch_ps + waves * float(np.median(took))


def kernel_line(study: Study) -> str:
    return changes.source_line(next(iter(_block_regions(study)), None)) or study.line()


def _block_regions(study: Study) -> list[Any]:
    assert study.lowered is not None
    source = study.lowered.source
    return changes.regions_of_scale(source, source.launch.dispatch)


def _phase_of_few(study: Study) -> Iterator[Finding]:
    """One phase of a program runs on few of its blocks."""
    level = level_of(study)
    if study.lowered is None or level is None:
        return
    source = study.lowered.source
    regions = [r for r in n.each(n.ScaleRegion, source.body) if r.scale == source.launch.dispatch]
    for region in regions if len(regions) > 1 else ():
        working = [m for m in region.body if not isinstance(m, (n.Alloc, n.View, n.Hint))]
        if len(working) != 1 or not isinstance(working[0], n.If) or working[0].orelse:
            continue
        where = over_grid(working[0].condition, source.launch)
        blocks = int(np.count_nonzero(where)) if where is not None else None
        rest = study.program_ps(partial(changes.without, nodes=[region]))
        if blocks is None or rest is None or blocks * 2 > min(level.units, level.instances):
            continue
        rounds = [len(t) for m in n.each(n.Loop, working[0].body) if (t := trips(m)) is not None]
        parts = min(level.units, level.instances, blocks * max(rounds, default=1))
        yield from study.finding(
            "few blocks in a phase", rest + (study.base_ps - rest) * blocks / max(1, parts),
            f"program timed again without the phase, and its time divided over {parts} blocks", bound=True,
            bottleneck=f"a phase on {blocks} of {source.launch.count(region.scale)} blocks; the others wait",
            reason=f"it takes {format_time(study.base_ps - rest)} of {format_time(study.base_ps)}",
            step="spread it: let every block do a part, or combine in the first phase (T.atomic_add)",
            source=changes.source_line(working[0]),
        )  # fmt: skip
