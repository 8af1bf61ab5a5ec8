"""Rules about how blocks fill the machine: tile sizes, waves, residency, launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import trips
from megatile.core.quantities import format_bytes, format_time
from megatile.ir import nodes as n
from megatile.language.tile.capacity import thread_count
from megatile.lowering.explain import counted, figures, spoken_unit
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.arguments import Arguments, Trial, arguments_of, overhangs
from megatile.verdict.blocks import IDLE, UNEVEN, idle_share, kernel_line, level_of
from megatile.verdict.fusion import totals
from megatile.verdict.grid import independent_parts, parts_in_grid, scan, split_sums, sums
from megatile.verdict.model import MIN_GAIN, Finding
from megatile.verdict.resized import best_resized, sizes_of
from megatile.verdict.study import IDEAL, Study, collectives, rule

MIN_LOAD_SHARE = 0.85
"""Share of the time that loads are busy before larger tiles are tried."""
SHARE_OF_STARTUP = 0.15
"""Share of the time that engines' start-up takes before it is named."""
MIN_PART = 0.5
"""Share of what is saved where all units work that other arguments must save, to be the remedy."""
LESS_WORK = 0.1
"""The share of the operations that other tiles must save to be called padding."""
FEWER_BYTES = 0.1
"""The share of the bytes that other tiles must save for these to be called too small."""


@rule("tile size", search=True)
def tile_size(study: Study) -> Iterator[Finding]:
    """Tiles that fill the machine badly, or are too small for what is loaded for them."""
    level = level_of(study)
    if level is None or study.lowered is None:
        return
    arguments = arguments_of(study)
    idle, uneven = idle_share(study)
    waves = (
        f"{level.instances} blocks are {level.waves:.2f} waves of {level.units * level.slots}, {level.slots} "
        f"on each {spoken_unit(level.unit)} (limited by {level.limit})"
    )
    if level.waves < 1:
        most = -(-level.instances // level.units)
        waves = f"{level.instances} blocks on {counted(level.units, level.unit)}: up to {most} on each"
    if level.instances < level.units and study.base_ps > 2 * study.launch_ps:
        yield from _few_blocks(study, arguments, level)
        other = best_resized(study)
        if other is not None and not _more(study, other):
            yield from _other_tiles(study, other, waves)
        return
    trial = arguments.best(arguments.named("tile")) or best_resized(study)
    if trial is not None:
        ps, how, bound = (
            float(trial.time_ps),
            f"program made and timed again with {arguments.text(trial)}",
            False,
        )
        step = arguments.step(trial)
    else:
        ps, how, bound, step = 0.0, "", True, ""
    less = _less_work(study, trial)
    if trial is not None and less > LESS_WORK and overhangs(study.lowered.source):
        yield from study.finding(
            "padding", ps, how,
            bottleneck=f"padding: tiles reach over the edges, and {less:.0%} of the work is on nothing",
            reason="the extents are no multiples of the tiles, which are computed whole",
            step=f"tiles that fit better: {step}", source=kernel_line(study),
        )  # fmt: skip
        return
    if idle > IDLE and uneven < UNEVEN and level.units < level.instances and level.waves < 8:
        if trial is None or trial.time_ps > study.base_ps * (1 - MIN_GAIN):
            ps, how, bound, step = study.base_ps * (1 - idle), "as if the last wave were full", True, ""
        yield from study.finding(
            "tail wave", ps, how, bound=bound,
            bottleneck="tail wave: the last blocks leave most of the machine idle",
            reason=f"{waves}; units are idle for {idle:.0%} of the time after their last block",
            step=f"another tile size: {step}" if step else "a tile size whose blocks fill whole waves, or "
            "T.Persistent", source=kernel_line(study),
        )  # fmt: skip
        return
    if trial is not None:
        yield from _other_tiles(study, trial, waves)


def _other_tiles(study: Study, trial: Trial, waves: str) -> Iterator[Finding]:
    """Name a program with other tiles that is faster: tiles are too small for what is loaded, or else."""
    if study.figures is None:
        return
    level_loads = [study.busy(m.name) for m in study.hda.memories if m.cache]
    loads = max([*level_loads, _use(study, "dma")])
    ps, step = float(trial.time_ps), arguments_of(study).step(trial)
    how = f"program made and timed again with {arguments_of(study).text(trial)}"
    moved, before = figures(trial.lowered).moved, study.figures.moved
    larger = command_count(trial.lowered.plan) < command_count(study.plan)
    if (
        larger
        and moved < (1 - FEWER_BYTES) * before
        and loads > MIN_LOAD_SHARE
        and _use(study, "tensor") < MIN_LOAD_SHARE
    ):
        yield from study.finding(
            "small tile", ps, how,
            bottleneck="tiles too small: loads limit the tensor engines" if _use(study, "tensor") else
            "tiles too small: too little work for what is loaded",
            reason=f"loads are busy {loads:.0%}, tensor engines {_use(study, 'tensor'):.0%}; {waves}",
            step=f"another tile size: {step}", source=kernel_line(study),
        )  # fmt: skip
        return
    kind = "tensor" if _use(study, "tensor") else "vector"
    change = f"; with other tiles copies move {format_bytes(moved)} instead of {format_bytes(before)}"
    otherwise = change if moved != before else ""
    yield from study.finding(
        "tile size", ps, how,
        bottleneck=_compared(study, trial),
        reason=f"{waves}; {kind} engines are busy {_use(study, kind):.0%}{otherwise}",
        step=f"another tile size: {step}", source=kernel_line(study),
    )  # fmt: skip


def _compared(study: Study, trial: Trial) -> str:
    """Say what other tiles are beside these."""
    assert study.lowered is not None
    before, after = (sizes_of(low.source) for low in (study.lowered, trial.lowered))
    pairs = [
        (prod(before[name]), prod(after[name])) for name in before if after.get(name, ()) != before[name]
    ]
    if pairs and all(x < y for x, y in pairs):
        return "tiles too small: larger ones are faster"
    if pairs and all(x > y for x, y in pairs):
        return "tiles too large: smaller ones are faster"
    return "tile shape: another one is faster"


def _less_work(study: Study, trial: Trial | None) -> float:
    """The share of operations that a program made otherwise leaves out."""
    if trial is None or study.figures is None:
        return 0.0
    before, after = study.figures.flops, figures(trial.lowered).flops
    kind = "tensor" if before.get("tensor") else "vector"
    return 1 - after.get(kind, 0) / before[kind] if before.get(kind) else 0.0


def _few_blocks(study: Study, arguments: Arguments, level: Any) -> Iterator[Finding]:
    trial = arguments.best(arguments.named("tile", "grid")) or best_resized(study)
    trial = trial if trial is not None and _more(study, trial) else None
    assert study.lowered is not None
    loop = independent_parts(study.lowered.source)
    spread = study.program_ps(parts_in_grid) if loop is not None else None
    if loop is not None and spread is not None and (trial is None or spread < trial.time_ps):
        yield from study.finding(
            "too few blocks", spread, f"program timed again with a block for each '{loop.var}'",
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
        "too few blocks", ps, how, bound=bound,
        bottleneck=f"too few blocks: {level.units - level.instances} of {level.units} units are idle",
        reason=str(level),
        step=_more_blocks(study, level) if trial is None else f"more blocks: {arguments.step(trial)}",
        source=kernel_line(study),
    )  # fmt: skip


def _more(study: Study, trial: Trial) -> bool:
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
    if study.lowered is None or study.figures is None or scan(study.lowered.source) is None:
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


def _use(study: Study, engine: str) -> float:
    return study.result.use(engine) if engine in study.result.busy else 0.0


@rule("split reduction", search=True)
def other_arguments(study: Study) -> Iterator[Finding]:
    """Arguments that decide neither tiles nor stages: how far a reduction is split, chunks, panels."""
    if study.lowered is None:
        return
    level = level_of(study)
    arguments = arguments_of(study)
    names = arguments.named("grid", "other") + (arguments.named("tile", "stages") if level is None else [])
    if not names or (level is not None and level.instances < level.units):
        return
    trial = arguments.best(names)
    if trial is None:
        return
    fewer = collectives(study.plan), collectives(trial.lowered.plan)
    if fewer[1] < fewer[0]:
        yield from study.finding(
            "small messages", trial.time_ps, f"program made and timed again with {arguments.text(trial)}",
            bottleneck="latency of messages: many small collectives, one after the other",
            reason=f"{fewer[0]} collectives, where {fewer[1]} can do the same: each has its own start",
            step=f"fewer, larger messages: {arguments.step(trial)}",
            source=study.line("channel", "control") or study.line(),
        )  # fmt: skip
        return
    atomics = changes.atomics(study.lowered.source)
    blocks = [x.plan.instances(x.plan.streams[-1].level) for x in (study.lowered, trial.lowered)]
    split = bool(atomics) and blocks[1] < blocks[0]
    yield from study.finding(
        "split reduction" if split else "argument", trial.time_ps,
        f"program made and timed again with {arguments.text(trial)}",
        bottleneck="the reduction is split needlessly: combining its parts takes the time" if split else
        f"an argument of the kernel: {arguments.text(trial)}",
        reason=f"{level or study.plan.scale}; {study.share('dma'):.0%} of the critical path is copies and "
        "atomics",
        step=arguments.step(trial), source=changes.source_line(atomics[0] if split else None) or study.line(),
    )  # fmt: skip


@rule("occupancy", search=True)
def occupancy(study: Study) -> Iterator[Finding]:
    """More resident blocks would hide latency, and something limits them."""
    level = level_of(study)
    if level is None or level.instances <= level.units * level.slots or study.lowered is None:
        return
    more = tuple(replace(x, slots=x.slots + 1) if x.slots is not None else x for x in study.plan.levels)
    if level.limit in ("max_resident",):
        return
    step = "fewer threads in a block"
    if level.limit != "threads":
        tile, room = _in_the_way(study, level)
        if tile is not None:
            if arguments_of(study).named("tile", "stages"):
                return  # then smaller tiles and fewer stages were timed: other rules say what they bring
            step = (
                f"a smaller '{tile.name}': it takes {format_bytes(_block_bytes(tile))} of the "
                f"{format_bytes(room)} of '{level.limit}'"
            )
        else:
            step += f": each keeps some of '{level.limit}' for addresses and operands"
    yield from study.finding(
        "occupancy", study.plan_ps(replace(study.plan, levels=more)),
        f"Plan timed again with {level.slots + 1} resident blocks", bound=True,
        bottleneck=f"low occupancy, limited by {level.limit}: too few blocks hide each other's latency",
        reason=str(level), step=step, source=kernel_line(study),
    )  # fmt: skip


def _block_bytes(tile: pm.Tile) -> int:
    return prod(tile.shape) * itemsize(tile.dtype) * tile.versions


def _in_the_way(study: Study, level: Any) -> tuple[pm.Tile | None, int]:
    """Return the largest tile of a block in the memory that limits residency, where tiles leave no room for
    one more block even with half as many threads (else None), and the bytes of that memory."""
    assert study.lowered is not None
    layer, name = study.hda.memory(level.limit), next(x.name for x in study.plan.levels if x.slots)
    tiles = [t for t in study.plan.tiles if t.level == name and study.hda.memory(t.memory) is layer]
    launch = study.lowered.source.launch
    addresses = thread_count(launch, launch.dispatch) // 2 * layer.thread_overhead
    full = (sum(map(_block_bytes, tiles)) + addresses) * (level.slots + 1) > layer.available
    return (max(tiles, key=_block_bytes) if tiles and full else None), int(layer.available)


@rule("short steps", search=True)
def short_steps(study: Study) -> Iterator[Finding]:
    """Commands are so short that starting them takes much of the time."""
    names = {
        f"engines.{e.name}.startup": 1 / IDEAL for e in study.hda.engines
        if e.startup_ps
    }  # fmt: skip
    if not names or study.plan.units > 1:
        return
    arguments = arguments_of(study)
    trial = (
        arguments.best(arguments.named("tile")) or best_resized(study) if study.lowered is not None else None
    )
    ps = study.figures_ps(names)
    if ps is None or ps > study.base_ps * (1 - SHARE_OF_STARTUP):
        return
    yield from study.finding(
        "short steps", ps, "timed again with engines that start at once", bound=True,
        bottleneck="short commands: starting them takes much of the time",
        reason=f"engines' start-up is {1 - ps / study.base_ps:.0%} of the time",
        step=f"more work in each step: {arguments.step(trial)}" if trial is not None else
        "more work in each step: larger tiles, a larger step along K",
        source=study.line(),
    )  # fmt: skip


@rule("launch")
def launch_overhead(study: Study) -> Iterator[Finding]:
    """The host's launch takes much of the time."""
    if study.launch_ps < 0.2 * study.base_ps:
        return
    yield from study.finding(
        "launch", study.plan_ps(study.plan, control=False), "Plan timed again without the host's launch",
        bottleneck="launch overhead: the kernel is short beside its launch",
        reason=f"{format_time(study.launch_ps)} of {format_time(study.base_ps)} go before the first command",
        step="do more in one launch, or capture launches in a graph (launch=False)",
    )  # fmt: skip
