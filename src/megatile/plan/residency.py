"""Which instances of a plan's levels are there: where they lie on a machine, and who follows when one ends.

See "Levels" in ``model.py``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any
from weakref import ref

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.plan.cohort import spread
from megatile.plan.model import Level, Plan, PlanError, Tile

Array = Any


def units_below(hda: HDA, level: Level, plan: Plan) -> int:
    """Return hardware units of the level's scale in each hardware unit of the parent's scale, or in the
    machine."""
    there = hda.count(level.scale)
    if level.parent is None:
        return there
    above = plan.level(level.parent)
    per, rest = divmod(there, hda.count(above.scale))
    if rest or not per:
        raise PlanError(
            f"level '{level.name}' has scale '{level.scale}', which is not below scale '{above.scale}' "
            f"of its parent '{above.name}' on machine '{hda.name}'"
        )
    return per


@partial(cached_in_owner, key=ref)
def copies(plan: Plan, hda: HDA) -> dict[str, tuple[Array, Array]]:
    """For each level, the hardware units that hold its instances, and how many instances each has. (All who
    ask get the same dictionary and arrays: copy them before changing them.)"""
    found: dict[str, tuple[Array, Array]] = {}
    for level in plan.all_levels:
        per, own = units_below(hda, level, plan), np.arange(0 if level.slots else level.count)
        places = spread(level.place.evaluate({"unit": own}), len(own))
        if len(places) and (places.min() < 0 or places.max() >= per):
            raise PlanError(
                f"plan '{plan.name}' uses unit {int(places.max())} of scale '{level.scale}', "
                f"machine '{hda.name}' has {per}{' in each of its parent' if level.parent else ''}"
            )
        if level.parent is None and level.slots is None:
            found[level.name] = places, np.ones(len(places), dtype=np.int64)
            continue
        above, times = found[level.parent] if level.parent else (np.zeros(1, np.int64), np.ones(1, np.int64))
        if level.slots is not None:
            above = np.unique(above)
            places, times = np.arange(per), np.full(len(above), level.slots)
        units = (above[:, None] * (per if level.parent else 0) + places[None, :]).ravel()
        found[level.name] = units, np.repeat(times, len(places))
    return found


def part_places(plan: Plan, hda: HDA, tile: Tile, blocks: Array | None, units: Array | None = None) -> Array:
    """Return the hardware units, below that of the first owner, with which blocks of a spread tile lie;
    without ``blocks``, those of instances of the level it is spread over (``units``)."""
    level = plan.level(tile.over)
    below, total = units_below(hda, level, plan), prod(tile.block_grid)
    count = level.count if level.slots is None else min(level.count, below)
    index = np.asarray(units) % count if blocks is None else np.clip(blocks, 0, total - 1) * count // total
    return index if level.slots is not None else spread(level.place.evaluate({"unit": index}), len(index))


class Residency:
    """Starts instances of levels; with a machine, only as many at a time as there are slots.

    ``begin`` and ``finished`` say which instances start now, as (level, numbers).
    """

    def __init__(self, plan: Plan, hda: HDA | None = None):
        self.plan, self.hda = plan, hda
        self.children: dict[str | None, list[Level]] = {}
        for level in plan.all_levels:
            self.children.setdefault(level.parent, []).append(level)
        self.bounded = hda is not None and any(level.slots is not None for level in plan.levels)
        self.streams = {level.name: 0 for level in plan.all_levels}
        for stream in plan.streams:
            self.streams[plan.level(stream.level).name] += 1
        self.waiting: dict[tuple[str, int], deque[int]] = {}
        self.free: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.held: dict[tuple[str, int], tuple[tuple[str, int], tuple[int, int]]] = {}
        self.hardware: dict[tuple[str, int], int] = {}
        self.alive: dict[tuple[str, int], int] = {}

    def begin(self) -> Iterator[tuple[Level, Array]]:
        for level in self.children.get(None, []):
            yield from self.enter(level, np.arange(level.count), 0)

    def enter(self, level: Level, numbers: Array, above: int) -> Iterator[tuple[Level, Array]]:
        """Instances below hardware unit ``above`` may start; those without a free slot wait."""
        if not self.bounded:
            yield from self.start(level, numbers)
            return
        assert self.hda is not None
        per = units_below(self.hda, level, self.plan)
        if level.slots is None:
            for number in numbers.tolist():
                place = int(level.place.evaluate({"unit": number % level.count}))
                self.hardware[level.name, number] = above * per + place
            yield from self.start(level, numbers)
            return
        pool = (level.name, above)
        slots = range(level.slots)
        self.free.setdefault(pool, [(s, above * per + u) for s in slots for u in range(per)])
        self.waiting.setdefault(pool, deque()).extend(numbers.tolist())
        yield from self.dispatch(level, pool)

    def dispatch(self, level: Level, pool: tuple[str, int]) -> Iterator[tuple[Level, Array]]:
        waiting, free, started = self.waiting[pool], self.free[pool], []
        while waiting and free:
            number, slot = waiting.popleft(), heapq.heappop(free)
            self.held[level.name, number] = pool, slot
            self.hardware[level.name, number] = slot[1]
            started.append(number)
        if started:
            yield from self.start(level, np.asarray(started))

    def start(self, level: Level, numbers: Array) -> Iterator[tuple[Level, Array]]:
        below = self.children.get(level.name, [])
        if self.bounded:
            parts = (self.streams[level.name] > 0) + sum(child.count for child in below)
            self.alive.update(((level.name, n), parts) for n in numbers.tolist())
        yield level, numbers
        for child in below:
            inner = numbers[:, None] * child.count + np.arange(child.count)
            if not self.bounded:
                yield from self.start(child, inner.ravel())
                continue
            for number, own in zip(numbers.tolist(), inner, strict=True):
                yield from self.enter(child, own, self.hardware[level.name, number])

    def finished(self, level: Level, numbers: Array) -> Iterator[tuple[Level, Array]]:
        """The streams of these instances have ended: slots become free for those that wait."""
        if not self.bounded:
            return
        for number in numbers.tolist():
            yield from self.ended(level, number)

    def ended(self, level: Level, number: int) -> Iterator[tuple[Level, Array]]:
        key = (level.name, number)
        self.alive[key] -= 1
        if self.alive[key]:
            return
        if key in self.held:
            pool, slot = self.held.pop(key)
            heapq.heappush(self.free[pool], slot)
            yield from self.dispatch(level, pool)
        if level.parent is not None:
            yield from self.ended(self.plan.level(level.parent), number // level.count)

    def absent(self) -> dict[str, int]:
        """Return how many instances of each level wait for a slot."""
        found: dict[str, int] = {}
        for (name, _), waiting in self.waiting.items():
            if waiting:
                found[name] = found.get(name, 0) + len(waiting)
        return found
