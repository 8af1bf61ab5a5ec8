"""Rules about how blocks fill the machine: tile sizes, waves, residency, launches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import known
from megatile.core.quantities import format_bytes, format_time
from megatile.ir import nodes as n
from megatile.language.tile.capacity import thread_count
from megatile.lowering.explain import counted, figures, spoken_unit
from megatile.lowering.lowered import Lowered
from megatile.plan import model as pm
from megatile.plan.counts import command_count
from megatile.verdict import changes
from megatile.verdict.arguments import Trial, arguments_of, overhangs
from megatile.verdict.blocks import IDLE, UNEVEN, idle_share, kernel_line, level_of
from megatile.verdict.chains import turns_of
from megatile.verdict.few_blocks import few_blocks, more_blocks
from megatile.verdict.model import MIN_GAIN, Finding, Kind
from megatile.verdict.resized import best_resized, sizes_of
from megatile.verdict.study import IDEAL, Study, collectives, rule

MIN_LOAD_SHARE = 0.85
"""Share of the time that loads are busy before larger tiles are tried."""
SHARE_OF_STARTUP = 0.15
"""Share of the time that engines' start-up takes before it is named."""
LESS_WORK = 0.1
"""The share of the operations that other tiles must save to be called padding."""
FEW_CHANGES = 2
"""Arguments that are changed together, up to which one of them may be the mistake."""
FEWER_BYTES = 0.1
"""The share of the bytes that other tiles must save for these to be called too small."""


@rule("tile size", Kind.SEARCH, costly=True)
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
    turns = turns_of(study) is not None  # then units of most devices wait whatever the number of blocks
    if not turns and level.instances < level.units and study.base_ps > 2 * study.launch_ps:
        yield from few_blocks(study, arguments, level)
        other = arguments.best(arguments.named("tile")) or best_resized(study)
        if other is not None and not more_blocks(study, other):
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
    if not turns and idle > IDLE and uneven < UNEVEN and level.units < level.instances and level.waves < 8:
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
    sent = _longer_messages(study, trial)
    if sent is not None:
        yield from study.finding(
            "small messages", ps, how,
            bottleneck="latency of messages: small ones, one after the other",
            reason=f"every message of this line has its own start; {study.share('dma'):.0%} of the critical "
            "path is copies and messages",
            step=f"fewer, larger messages: {step}", source=changes.source_line(sent),
        )  # fmt: skip
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
        kind=Kind.SEARCH if len(trial.changes) <= FEW_CHANGES else Kind.ADVICE,
    )  # fmt: skip


def _longer_messages(study: Study, trial: Trial) -> n.Copy | None:
    """Return a copy to another unit that other tiles make longer."""
    assert study.lowered is not None
    before, after = (sizes_of(low.source) for low in (study.lowered, trial.lowered))
    for copy in n.each(n.Copy, study.lowered.source.body):
        name = copy.source.source
        if n.remote(copy) is not None and prod(after.get(name, ())) > prod(before.get(name, ())):
            return copy
    return None


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


def _use(study: Study, engine: str) -> float:
    return study.result.use(engine) if engine in study.result.busy else 0.0


@rule("argument", Kind.SEARCH, costly=True)
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
    sizes = _message_size(study.lowered), _message_size(trial.lowered)
    if sizes[1] > sizes[0]:
        yield from study.finding(
            "small messages", trial.time_ps, f"program made and timed again with {arguments.text(trial)}",
            kind=Kind.CAUSE,
            bottleneck="latency of messages: small ones, one after the other",
            reason=f"messages of {sizes[0]} elements, not {sizes[1]} at once: each has its own start",
            step=f"fewer, larger messages: {arguments.step(trial)}",
            source=study.line("channel", "control", "dma") or study.line(),
        )  # fmt: skip
        return
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


def _message_size(low: Lowered) -> int:
    """Return the elements of the largest message between units."""
    copies = (c for c in n.each(n.Copy, low.source.body) if n.remote(c) is not None)
    return max((prod(known(e) or 0 for e in c.to.extents) for c in copies), default=0)


@rule("occupancy", Kind.ADVICE)
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


@rule("short steps", Kind.ADVICE, costly=True)
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


@rule("launch", Kind.CALLER)
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
