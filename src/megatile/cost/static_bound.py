"""``floor(plan, machine)``: a lower bound of a plan's time without running it, for plans with many instances.

What the instances of a level keep an engine or a memory busy with, divided evenly over those that they may
use; what goes through the busiest link; and, as an instance stays on its hardware unit, whole instances in
turn on the busiest engine. Commands
whose number is not known without running (data, or an outer loop's index, decides) count as none, work whose
size is not known as a start-up. Of a memory behind caches, copies keep the nearest cache busy with all their
bytes, and the memory with those that it must give or take at least once: distinct blocks that are read, and
distinct blocks that are written beyond what the caches hold at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.expr import constant
from megatile.cost.links import busiest_link
from megatile.cost.stream_counts import Values, Walk, value_of
from megatile.hda import HDA, machine as find_machine
from megatile.plan import model as pm
from megatile.plan.residency import copies
from megatile.plan.statements import engine_of
from megatile.timing.fabric import serialise_ps
from megatile.timing.resources import Resources

Busy = dict[tuple[str, str], Any]
"""Picoseconds of every instance, by ("engine", kind) or ("memory", name)."""


def floor(plan: pm.Plan, machine: HDA | str, *, launch: bool = True) -> int:
    """Return picoseconds that the plan takes at least."""
    hda = find_machine(machine) if isinstance(machine, str) else machine
    whole = Resources(hda, plan, control=launch)
    places = copies(plan, hda)
    longest, loads = 0, dict[tuple[str, str, str], float]()
    for stream in plan.streams:
        level = plan.level(stream.level)
        view = whole.of(level.name) if plan.levels else whole
        counted = _Count(plan, view, stream)
        at = places[level.name][0]
        parents = plan.instances(level.parent) if level.parent else 1
        for (what, name), busy in counted.busy.items():
            longest = max(longest, int(busy.max(initial=0)))
            on = _level_of(view, what, name)
            if on is None or not plan.levels:
                continue
            servers = len(np.unique(at * hda.level(on).total // view.level.total))
            key = (what, name, on)
            loads[key] = loads.get(key, 0.0) + float(busy.sum()) / servers
            if level.slots is not None and what == "engine" and len(busy) == plan.instances(level.name) > 0:
                turns = -(-level.count // max(1, servers // parents))
                longest = max(longest, turns * int(busy.min()))
    found = max(longest, int(max(loads.values(), default=0.0)), _behind_caches(whole), busiest_link(whole))
    return whole.whole_ps(min((whole.start_ps(u) for u in (0,) if plan.units), default=0) + found, launch)


def _behind_caches(whole: Resources) -> int:
    """Return how long a memory behind caches serves at least: the busiest of all such memories of the
    machine."""
    plan, hda = whole.plan, whole.hda
    moved: dict[tuple[str, str], int] = {}
    written = {s.write.tile for body in plan.bodies for s in body if isinstance(s, pm.Compute)}
    for stream in plan.streams if plan.levels else ():
        view = whole.of(plan.level(stream.level).name)
        for (tile, write), nbytes in Distinct(plan, stream).bytes().items():
            memory = plan.tile(tile).memory
            caches = view.caches(memory, 0)
            if caches and (write or tile not in written):
                held = sum(hda.memory(c.name).size for c in caches) if write else 0
                moved[memory, tile] = max(moved.get((memory, tile), 0), nbytes - held)
    longest = 0
    for name in {memory for memory, _ in moved}:
        total = sum(nbytes for (memory, _), nbytes in moved.items() if memory == name)
        fills = [c.fill or 0.0 for c in hda.memories if c.of and hda.memory(c.of) is hda.memory(name)]
        rate = max([hda.memory(name).effective_bandwidth, *fills])
        longest = max(longest, serialise_ps(total / max(1, plan.units), rate))
    return longest


class Distinct(Walk):
    """Blocks of tiles that the copies of a stream read or write, counted once however often they are used."""

    def __init__(self, plan: pm.Plan, stream: pm.Stream) -> None:
        self.tiles = {tile.name: tile for tile in plan.tiles}
        self.found: dict[tuple[str, bool], tuple[tuple[int, ...], Any]] = {}
        super().__init__(stream)

    def command(self, s: Any, known: Values, times: Any) -> None:
        if isinstance(s, pm.Compute) and s.engine == "dma":
            self.copy(s.reads[:1], False, known, times > 0)
            self.copy((s.write,), True, known, times > 0)

    def copy(self, regions: Iterable[pm.Region], write: bool, known: Values, alive: Any) -> None:
        """Regions at multiples of one shape do not overlap; others are left out."""
        for region in regions:
            tile, shape = self.tiles.get(region.tile), tuple(constant(e) or 0 for e in region.shape)
            starts = [value_of(e, known) for e in region.start]
            if (
                tile is None
                or not shape
                or not all(shape)
                or region.at is not None
                or any(s is None for s in starts)
            ):
                continue
            number, aligned = np.zeros(alive.shape, np.int64), alive
            for start, size, extent in zip(starts, shape, tile.shape, strict=True):
                number = number * -(-extent // size) + np.asarray(start) // size
                aligned = aligned & (np.asarray(start) % size == 0)
            blocks = prod(-(-extent // size) for extent, size in zip(tile.shape, shape, strict=True))
            first, found = self.found.setdefault((region.tile, write), (shape, np.zeros(blocks, bool)))
            if first == shape:
                found[number[aligned & (number >= 0) & (number < blocks)]] = True

    def bytes(self) -> dict[tuple[str, bool], int]:
        """By tile, and whether it is written; what is written is not read from behind the caches."""
        return {
            (name, write): int(found.sum()) * prod(shape) * itemsize(self.tiles[name].dtype)
            for (name, write), (shape, found) in self.found.items()
        }


def _level_of(view: Resources, what: str, name: str) -> str | None:
    """Return the level of the engine or memory that instances contend for; None where each has its own."""
    if what == "memory":
        layer, _, contended = view.memory(name)
        return layer.level if contended or layer.cache else None
    key = view.engine_resource(name, 0)
    return key[1].split()[0] if key is not None else None


class _Count(Walk):
    """Adds up what the instances of one stream do, all of them at once."""

    MAX_ROWS = -1  # rounds of a loop are counted, not told apart

    def __init__(self, plan: pm.Plan, view: Resources, stream: pm.Stream) -> None:
        self.view = view
        self.busy: Busy = {}
        self.memories = {tile.name: tile.memory for tile in plan.tiles}
        super().__init__(stream)

    def command(self, s: Any, known: Values, times: Any) -> None:
        if not isinstance(s, pm.Compute):
            return
        size = value_of(s.work.bytes if s.engine == "dma" else s.work.flops, known)
        sizes, which = np.unique(
            np.broadcast_to(0 if size is None else size, times.shape), return_inverse=True
        )

        def add(what: str, name: str, each_ps: Callable[[int], int]) -> None:
            busy = times * np.array([each_ps(int(one)) for one in sizes])[which.reshape(times.shape)]
            self.busy[what, name] = self.busy.get((what, name), 0) + busy

        if s.engine != "dma":
            add("engine", s.engine, lambda flops: self.view.compute_ps(s, flops, 0))
            return
        dma = self.view.mover(s.by)
        add("engine", engine_of(s), lambda nbytes: dma.startup_ps + serialise_ps(nbytes, dma.bandwidth))
        for memory in {self.memories.get(r.tile) for r in (*s.reads[:1], s.write) if r.at is None} - {None}:
            assert memory is not None
            name = next((cache.name for cache in self.view.caches(memory, 0)), memory)
            add("memory", name, partial(serialise_ps, rate=self.view.memory(name)[1]))
