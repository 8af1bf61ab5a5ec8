"""What more blocks would bring to a launch that has fewer than the machine has units for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatile.core.expr import trips
from megatile.ir import nodes as n
from megatile.plan import model as pm
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.arguments import Arguments, Trial
from megatile.verdict.blocks import kernel_line
from megatile.verdict.fusion import totals
from megatile.verdict.grid import independent_parts, parts_in_grid, scan, split_sums, sums
from megatile.verdict.model import Finding, Kind
from megatile.verdict.resized import best_resized
from megatile.verdict.study import Study

MIN_PART = 0.5
"""Share of what is saved where all units work that other arguments must save, to be the remedy."""


def few_blocks(study: Study, arguments: Arguments, level: Any) -> Iterator[Finding]:
    """Yield what more blocks bring: rounds or parts of sums as blocks, other arguments or tiles."""
    trial = arguments.best(arguments.named("tile", "grid"))
    if trial is None and mostly_idle(level):
        trial = best_resized(study)
    trial = trial if trial is not None and more_blocks(study, trial) else None
    assert study.lowered is not None
    loop = independent_parts(study.lowered.source)
    spread = study.program_ps(parts_in_grid) if loop is not None else None
    if loop is not None and spread is not None and (trial is None or spread < trial.time_ps):
        yield from study.finding(
            "too few blocks", spread, f"program timed again with a block for each '{loop.var}'",
            kind=Kind.CAUSE,
            bottleneck=f"too few blocks: {level.units - level.instances} of {level.units} units are idle",
            reason=f"{level}; the iterations of '{loop.var}' need nothing of each other",
            step=f"a dimension of the grid in place of the loop over '{loop.var}'",
            source=changes.source_line(loop),
        )  # fmt: skip
        return
    divided = _divided(study, level)
    if divided is not None and (trial is None or divided[0] < trial.time_ps):
        took, parts, line = divided
        yield from study.finding(
            "too few blocks", took, f"program timed again with {parts} blocks for each, and T.atomic_add",
            kind=Kind.CAUSE,
            bottleneck=f"too few blocks: {level.units - level.instances} of {level.units} units are idle",
            reason=f"{level}; the loop only adds up, so that parts of it can go to other units",
            step=f"divide the reduction over {parts} blocks (a dimension of the grid) that T.atomic_add "
            "their sums, or add them up in a second pass", source=line,
        )  # fmt: skip
        return
    ideal = _spread_ps(study, level)
    if trial is not None and study.base_ps - trial.time_ps < MIN_PART * (study.base_ps - ideal):
        trial = None
    if trial is not None:
        ps, how, bound = (
            float(trial.time_ps),
            f"program made and timed again with {arguments.text(trial)}",
            False,
        )
    else:
        ps, bound = ideal, True
        how = f"as if the work of blocks were spread over all {level.units} units"
    yield from study.finding(
        "too few blocks", ps, how, bound=bound, kind=Kind.CAUSE if trial is None else Kind.SEARCH,
        bottleneck=f"too few blocks: {level.units - level.instances} of {level.units} units are idle",
        reason=str(level),
        step=_more_blocks(study, level) if trial is None else f"more blocks: {arguments.step(trial)}",
        source=kernel_line(study),
    )  # fmt: skip


def mostly_idle(level: Any) -> bool:
    """Whether half of the units have no block."""
    return bool(2 * level.instances <= level.units)


def more_blocks(study: Study, trial: Trial) -> bool:
    """Whether a program has more blocks than this one."""
    assert study.lowered is not None
    launches = [low.source.launch for low in (study.lowered, trial.lowered)]
    before, after = (launch.count(launch.dispatch) for launch in launches)
    return after > before


def _divided(study: Study, level: Any) -> tuple[int, int, str] | None:
    """Return the time with the reduction of a block divided over several, how many, and its line."""
    assert study.lowered is not None
    source, found = study.lowered.source, list[tuple[int, int, str]]()
    for most in dict.fromkeys(level.units * slots // level.instances for slots in (1, level.slots)):
        changed, parts = split_sums(source, most)
        low = study.lower(changed) if parts > 1 else None
        ps = study.plan_ps(low.plan) if low is not None else None
        if ps is not None:
            found.append((ps, parts, changes.source_line(sums(source))))
    return min(found, default=None)


def _spread_ps(study: Study, level: Any) -> float:
    """Return the time where all units share the work of too few blocks: what the Plan takes without that
    work, and the part of the rest that is each unit's."""
    dispatched = next(x.name for x in study.plan.levels if x.slots is not None)
    gone = lambda s: None if isinstance(s, pm.Compute) else s  # noqa: E731
    streams = tuple(
        replace(x, body=rewritten(x.body, gone)) if x.level == dispatched else x for x in study.plan.streams
    )
    others = study.plan_ps(replace(study.plan, streams=streams)) or study.launch_ps
    rest = max(0, study.base_ps - others) * level.instances / level.units
    least = study.figures.least_ps if study.figures is not None else 0.0
    shorter = _shorter_loops(study.plan, dispatched, level.units // level.instances)
    alone = study.plan_ps(shorter) if shorter is not None else None
    return max(others + rest, study.launch_ps + least + _second_pass_ps(study), float(alone or 0))


def _second_pass_ps(study: Study) -> float:
    """Return how long it takes to load everything once more, as a scan must whose parts go to all units."""
    return loads_ps(study) if study.lowered is not None and scan(study.lowered.source) is not None else 0.0


def loads_ps(study: Study) -> float:
    """Return how long it takes to load from memory what all blocks load."""
    if study.figures is None:
        return 0.0
    loaded = sum(sum(totals(study.plan, x).loaded.values()) for x in study.plan.streams)
    return loaded / study.figures.bandwidth * 1e12 if study.figures.bandwidth else 0.0


def _shorter_loops(plan: pm.Plan, level: str, parts: int) -> pm.Plan | None:
    """Return the Plan whose blocks do one of so many parts of their longest loops; None: they have none."""

    def change(s: Any) -> Any:
        rounds = trips(s) if isinstance(s, pm.Loop) else None
        if rounds is None or len(rounds) < parts:
            return s
        return replace(s, stop=s.start + s.step * -(-len(rounds) // parts))

    streams = tuple(
        replace(x, body=tuple(map(change, x.body))) if x.level == level else x for x in plan.streams
    )
    return replace(plan, streams=streams) if streams != plan.streams else None


def _more_blocks(study: Study, level: Any) -> str:
    """How to have more blocks: those of a persistent kernel are not tied to its tiles."""
    assert study.lowered is not None
    if any(loop.kind == "persistent" for loop in n.each(n.Loop, study.lowered.source.body)):
        return (
            f"as many blocks as the machine has units: block={level.units}, T.Persistent(…, {level.units}, …)"
        )
    if scan(study.lowered.source) is not None:
        return (
            "blocks for parts of each row, in two passes: the first sums the parts, the second begins each "
            "part with what those before it add up to"
        )
    return "more, smaller blocks: smaller tiles, or divide the reduction and combine the parts"
