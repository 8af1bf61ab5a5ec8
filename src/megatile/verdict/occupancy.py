"""Rules about how blocks fill the machine: tile sizes, waves, balance, residency, launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import Expr, Symbol, rebuild, trips, walk
from megatile.core.quantities import format_bytes, format_time
from megatile.ir import nodes as n
from megatile.ir.expr import Coord, Load, Rank
from megatile.ir.launch import Launch
from megatile.language.tile.capacity import thread_count
from megatile.lowering.explain import counted, figures, spoken_unit
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.plan.statements import rewritten
from megatile.verdict import changes
from megatile.verdict.arguments import Arguments, Trial, arguments_of, overhangs
from megatile.verdict.even import evened
from megatile.verdict.fusion import totals
from megatile.verdict.model import Finding
from megatile.verdict.serial import independent_parts, parts_in_grid, scan
from megatile.verdict.study import IDEAL, Study, collectives, rule

IDLE = 0.08
"""The share of the units' time, idle at the end, from which on that is a symptom."""
UNEVEN = 1.3
"""The longest block against the middle one."""
MIN_LOAD_SHARE = 0.85
"""Share of the time that loads are busy before larger tiles are tried."""
SHARE_OF_STARTUP = 0.15
"""Share of the time that engines' start-up takes before it is named."""
MIN_PART = 0.5
"""Share of what is saved where all units work that other arguments must save, to be the remedy."""
LONG = 4.0
"""The longest block against the median one, from which on it is the time even where units have no block."""
MAX_BLOCKS = 1 << 20
"""Blocks of grids whose conditions are looked at."""
LESS_WORK = 0.1
"""The share of the operations that other tiles must save to be called padding."""
FEWER_BYTES = 0.1
"""The share of the bytes that other tiles must save for these to be called too small."""


def _level(study: Study) -> Any:
    """The level whose instances run in waves, with its figures, or None."""
    if study.figures is None:
        return None
    return next((one for one in study.figures.levels if one.slots is not None), None)


def _idle(study: Study) -> tuple[float, float]:
    """The share of the units' time after their last block, and the largest block against the middle one."""
    found, level = study.instances, _level(study)
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
    """Long blocks begin late, and the other units wait for them."""
    idle, uneven = _idle(study)
    level = _level(study)
    if idle < IDLE or study.lowered is None:
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
        step=step, source=_kernel_line(study),
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
        "divide the long blocks, or deal them out evenly (T.Persistent)", source=_kernel_line(study),
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


def _kernel_line(study: Study) -> str:
    return changes.source_line(next(iter(_block_regions(study)), None)) or study.line()


def _block_regions(study: Study) -> list[Any]:
    assert study.lowered is not None
    source = study.lowered.source
    return changes.regions_of_scale(source, source.launch.dispatch)


@rule("few blocks in a phase")
def phase_of_few(study: Study) -> Iterator[Finding]:
    """One phase of a program runs on few of its blocks."""
    level = _level(study)
    if study.lowered is None or level is None:
        return
    source = study.lowered.source
    regions = [r for r in n.each(n.ScaleRegion, source.body) if r.scale == source.launch.dispatch]
    for region in regions if len(regions) > 1 else ():
        working = [m for m in region.body if not isinstance(m, (n.Alloc, n.View, n.Hint))]
        if len(working) != 1 or not isinstance(working[0], n.If) or working[0].orelse:
            continue
        blocks = _blocks_where(working[0].condition, source.launch)
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


def _blocks_where(condition: Expr, launch: Launch) -> int | None:
    """How many blocks a condition on their coordinates lets through."""
    extents = launch.extents(launch.dispatch)
    if any(isinstance(p, (Load, Rank, Symbol)) for p in walk(condition)) or prod(extents) > MAX_BLOCKS:
        return None
    grid = np.meshgrid(*(np.arange(e) for e in extents), indexing="ij")
    named = rebuild(condition, lambda p: Symbol(f"axis{p.axis}") if isinstance(p, Coord) else p)
    return int(np.count_nonzero(named.evaluate({f"axis{d}": x for d, x in enumerate(grid)})))


@rule("tile size", search=True)
def tile_size(study: Study) -> Iterator[Finding]:
    """Tiles that fill the machine badly, or are too small for what is loaded for them."""
    level = _level(study)
    if level is None or study.lowered is None:
        return
    arguments = arguments_of(study)
    idle, uneven = _idle(study)
    loads = max([study.busy(m.name) for m in study.hda.memories if m.cache] + [_use(study, "dma")])
    waves = (
        f"{level.instances} blocks are {level.waves:.2f} waves of {level.units * level.slots}, {level.slots} "
        f"on each {spoken_unit(level.unit)} (limited by {level.limit})"
    )
    if level.waves < 1:
        most = -(-level.instances // level.units)
        waves = f"{level.instances} blocks on {counted(level.units, level.unit)}: up to {most} on each"
    if level.instances < level.units and study.base_ps > 2 * study.launch_ps:
        yield from _few_blocks(study, arguments, level)
        return
    trial = arguments.best(arguments.named("tile"))
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
            step=f"tiles that fit better: {step}", source=_kernel_line(study),
        )  # fmt: skip
        return
    if idle > IDLE and uneven < UNEVEN and level.units < level.instances and level.waves < 8:
        if trial is None:
            ps, how = study.base_ps * (1 - idle), "as if the last wave were full"
        yield from study.finding(
            "tail wave", ps, how, bound=bound,
            bottleneck="tail wave: the last blocks leave most of the machine idle",
            reason=f"{waves}; units are idle for {idle:.0%} of the time after their last block",
            step=f"another tile size: {step}" if step else "a tile size whose blocks fill whole waves, or "
            "T.Persistent", source=_kernel_line(study),
        )  # fmt: skip
        return
    if trial is None or study.figures is None:
        return
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
            step=f"another tile size: {step}", source=_kernel_line(study),
        )  # fmt: skip
        return
    kind = "tensor" if _use(study, "tensor") else "vector"
    change = f"; with other tiles copies move {format_bytes(moved)} instead of {format_bytes(before)}"
    otherwise = change if moved != before else ""
    yield from study.finding(
        "tile size", ps, how,
        bottleneck="tile size: another one is faster" if larger else "tile shape: another one is faster",
        reason=f"{waves}; {kind} engines are busy {_use(study, kind):.0%}{otherwise}",
        step=f"another tile size: {step}", source=_kernel_line(study),
    )  # fmt: skip


def _less_work(study: Study, trial: Trial | None) -> float:
    """The share of operations that a program made otherwise leaves out."""
    if trial is None or study.figures is None:
        return 0.0
    before, after = study.figures.flops, figures(trial.lowered).flops
    kind = "tensor" if before.get("tensor") else "vector"
    return 1 - after.get(kind, 0) / before[kind] if before.get(kind) else 0.0


def _few_blocks(study: Study, arguments: Arguments, level: Any) -> Iterator[Finding]:
    trial = arguments.best(arguments.named("tile", "grid"))
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
    ideal = _spread_ps(study, level)
    launch = trial.lowered.source.launch if trial is not None else study.lowered.source.launch
    more = launch.count(launch.dispatch) > level.instances
    if trial is not None and (not more or study.base_ps - trial.time_ps < MIN_PART * (study.base_ps - ideal)):
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
        source=_kernel_line(study),
    )  # fmt: skip


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
    level = _level(study)
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
    level = _level(study)
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
        reason=str(level), step=step, source=_kernel_line(study),
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
    trial = arguments.best(arguments.named("tile")) if study.lowered is not None else None
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
