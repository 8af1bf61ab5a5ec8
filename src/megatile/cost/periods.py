"""Loops whose iterations only move time on: after a few of them the rest is arithmetic.

If between two iterations every clock has moved by the same amount (or lies so far back that it no longer
matters), and all that decides the way is the same, then every further iteration moves the clocks by that
amount again. Blocks of tiles that a loop walks through (``x[(unit - k) % n]``) are compared, and moved, as
the loop walks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import Binary, Expr, Symbol, constant, linear, symbols
from megatile.plan.cohort import Cohort
from megatile.plan.model import Compute, Loop, Receive, Send, Tile, statements
from megatile.plan.statements import regions_of
from megatile.plan.steady import Snapshot, advance, repeats, same_state, snapshot

if TYPE_CHECKING:
    from megatile.cost.timed_walk import TimedWalk

NOW = ("now",)


@dataclass
class Watch:
    """One loop that may be skipped through: how its blocks move, and the state it is compared with."""

    period: int
    moves: dict[str, int]
    count: int = 0
    next_look: int = 2
    clocks: dict[Any, Any] | None = None
    counts: Snapshot | None = None
    flows: Any = None
    since: int = 0


def watch_of(walk: TimedWalk, loop: Loop) -> Watch | None:
    """A watch if every iteration takes the same way and walks its tiles at a steady pace."""
    step = constant(loop.step)
    if step is None or not repeats(loop):
        return None
    for statement in statements(loop.body):
        if isinstance(statement, (Compute, Send, Receive)):
            work = statement.work
            if loop.index in symbols(work.flops) | symbols(work.bytes):
                return None
    moves: dict[str, int] = {}
    for tile in walk.plan.tiles:
        pace = pace_of(walk, loop, tile, step)
        if pace is None:
            return None
        moves[tile.name] = pace
    slots = [channel.slots for channel in walk.plan.channels]
    return Watch(lcm(1, *slots, *(tile.versions for tile in walk.plan.tiles)), moves)


def pace_of(walk: TimedWalk, loop: Loop, tile: Tile, step: int) -> int | None:
    """By how many blocks per iteration a loop walks through a tile; None if not steadily."""
    grid = walk.hazards.grids[tile.name]
    paces: set[int] = set()
    for statement in statements(loop.body):
        for region in regions_of(statement):
            if region.tile != tile.name or not region.start:
                continue
            if region.at is not None or not grid.even:
                continue
            slope = _slope(region.start[grid.axis], loop.index, tile.shape[grid.axis])
            if slope is None or slope * step % grid.extent:
                return None
            paces.add(slope * step // grid.extent)
    return None if len(paces) > 1 else paces.pop() if paces else 0


def _slope(node: Expr, index: str, extent: int) -> int | None:
    """How fast an expression grows with the index, counted modulo the tile's extent."""
    total = 0
    for atom, factor in linear(node)[0].items():
        if atom == Symbol(index):
            total += factor
        elif index in symbols(atom):
            wraps = isinstance(atom, Binary) and atom.operator == "%" and constant(atom.right) == extent
            inner = _slope(atom.left, index, extent) if wraps and isinstance(atom, Binary) else None
            if inner is None:
                return None
            total += factor * inner
    return total


def pass_time(walk: TimedWalk, watch: Watch, loop: Loop, cohort: Cohort, remaining: int) -> int:
    """Called after each iteration: how many iterations were skipped (mostly none)."""
    watch.count += 1
    if remaining <= 2 * watch.period:
        return 0
    if watch.clocks is None:
        if watch.count >= watch.next_look:
            watch.clocks = {key: array.copy() for key, array in walk.clocks().items()}
            watch.counts = snapshot(walk.queues, cohort)
            watch.flows = walk.flows.counts()
            watch.since = watch.count
        return 0
    if watch.count < watch.since + watch.period:
        return 0
    before, watch.clocks = watch.clocks, None
    watch.next_look = 2 * watch.count
    assert watch.counts is not None
    shift = _shift(walk, watch, before)
    if shift is None or not same_state(watch.counts, walk.queues, cohort):
        return 0
    times = (remaining - 1) // watch.period - 1
    _move(walk, watch, before, shift * times, times)
    walk.flows.repeat(watch.flows, times)
    advance(loop, watch.counts, walk.queues, cohort, times, times * watch.period)
    return times * watch.period


def _shift(walk: TimedWalk, watch: Watch, before: dict[Any, Any]) -> int | None:
    """The amount by which all clocks have moved on; None if there is no such amount."""
    now = walk.clocks()
    moved = now[NOW] - before[NOW]
    shift, past = int(moved[0]), int(before[NOW].min())
    if shift <= 0 or set(now) != set(before):
        return None
    for key, array in now.items():
        old = _rolled(walk, before[key], watch.moves, key, watch.period)
        if key[0] in ("block", "buffer"):
            if not np.array_equal(old, array):
                return None
            continue
        if old.shape != array.shape or not ((array - old == shift) | ((array <= past) & (old <= past))).all():
            return None
    return shift


def _move(walk: TimedWalk, watch: Watch, before: dict[Any, Any], amount: int, times: int) -> None:
    past = int(before[NOW].min())
    for key, array in walk.clocks().items():
        place = key[0] in ("block", "buffer")
        later = array if place else np.where(array > past, array + amount, array)
        array[...] = _rolled(walk, later, watch.moves, key, times * watch.period)


def _rolled(walk: TimedWalk, array: Any, moves: dict[str, int], key: Any, iterations: int) -> Any:
    """Blocks where the loop will find them so many iterations later."""
    pace = moves.get(key[1], 0) * iterations if key[0] in ("tile", "block") else 0
    if not pace:
        return array
    if key[0] == "tile":
        return np.roll(array, pace, axis=-1) if array.shape[-1] > 1 else array
    blocks = walk.hazards.grids[key[1]].blocks
    return np.where(array >= 0, (array + pace) % blocks, array)
