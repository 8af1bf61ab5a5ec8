"""The rows of a launch in the engine: its channels, flags, rendezvous, levels and instances."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.plan import model as pm
from megatile.plan.residency import units_below
from megatile.sim import state as st
from megatile.sim.data import Assumed, Scalars
from megatile.sim.install import place_numbers
from megatile.sim.level_rows import LevelRows
from megatile.sim.state import (
    NONE,
    ChannelRow,
    Children,
    FlagRow,
    LaunchQueue,
    LaunchRow,
    LevelRow,
    Queue,
    Storage,
    UnitRow,
)
from megatile.sim.table import IDLE_STREAM, CommandTable
from megatile.timing.resources import Resources

if TYPE_CHECKING:
    from megatile.sim.simulation import Simulation

MAX_CHANNEL_QUEUES = 1 << 28
"""Queues of one channel: beyond, their rows alone would fill the memory."""


class TensorNumbers:
    """Numbers of tensors in caches: what outlives its launch is found again under the same one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._next = 1 << 20
        """Above those of all storages of a launch."""

    def find(self, key: tuple[Any, ...]) -> int:
        """Return the number of a tensor; the last of its key is how many numbers it has."""
        if key not in self._numbers:
            self._numbers[key], self._next = self._next, self._next + key[-1]
        return self._numbers[key]

    def forget(self, name: str) -> None:
        """Let another tensor have this name: its blocks are not in caches."""
        self._numbers = {key: number for key, number in self._numbers.items() if key[0] != name}


class LaunchRows:
    """The rows of one launch. When it has ended they serve for another of the same plan (`restart`)."""

    def __init__(self, simulation: Simulation, table: CommandTable, resources: Resources) -> None:
        self.arena, self.paths = simulation.arena, simulation.paths
        self.table, self.plan, self.resources = table, table.plan, resources
        self.beside = self.paths.everything_shared
        """Whether other launches may be beside it."""
        self.number, self.first = self.arena.used["launches"], self.arena.used["places"]
        """Its row of `launches`, and its first instance among those of all (`UnitRow.actor`)."""
        self.views = [resources.of(level.name) for level in self.plan.all_levels]
        """The machine as each level sees it."""
        counts = [self.plan.instances(level.name) for level in self.plan.all_levels]
        self.offsets = [0, *accumulate(counts)]
        """The number of the first instance of each level, and of all instances."""
        self.present = table.stream_of[0] != NONE
        """Which units of the first level have a stream; others are in other launches."""
        self.scalars: Scalars = Assumed(None)
        self.flows = range(0)
        """The numbers of its flows; those of a later launch are higher."""
        self.first_record = self.first_aux = 0
        self.caches: Any = simulation.arena.rows("caches")
        """What caches had counted before it began."""
        self.queue_ends: dict[int, tuple[int, int, int]] = {}
        """Channel, receiver and member of the queues that it uses."""
        self.own_queues: list[int] = []
        self.ends: dict[int, Any] = {}
        """By instruction, the ends of the copies of all who come to it."""
        self.sources = [c.source.compile() for c in self.plan.channels]
        self.senders = self.sources
        """Who feeds a queue on the machine: another unit, also where one unit represents all."""
        if resources.plan is not self.plan:
            self.senders = [c.source.compile() for c in resources.plan.channels]
        self._cached_tiles: list[tuple[int, int, pm.Tile, tuple[int, ...]]] = []
        """Of tiles that caches hold: where their number in caches stands, their first storage, the tile and
        the shape of its blocks."""
        self._fresh: tuple[Any, Any, Any] | None = None
        """What `units` hold before the launch begins, if others may have them after it: one of them, and the
        columns in which they differ."""
        for view in self.views:
            self.paths.use(view, self.offsets[-1])
        self.first_level = self.arena.used["levels"]
        self._declare(simulation)
        self._describe_levels(simulation)
        self._add_instances()
        self.busy = sum(int(np.count_nonzero(streams != NONE)) for streams in table.stream_of)
        """How many instances have a stream."""

    # making them

    def _declare(self, simulation: Simulation) -> None:
        """Add the channels, flags and rendezvous."""
        plan, table, arena = self.plan, self.table, self.arena
        self.channels, self.flags = arena.used["channels"], arena.used["flags"]
        self.rendezvous = arena.used["rendezvous"]
        self.first_queues: list[int] = []
        for channel, storage in zip(plan.channels, table.slot_base, strict=True):
            units = plan.instances(channel.level)
            count = units * channel.members
            if count > MAX_CHANNEL_QUEUES:
                raise pm.PlanError(
                    f"channel '{channel.name}' has {count} queues: too many to be simulated",
                    advice="use fewer members or units",
                )
            self.first_queues.append(arena.extend("launch_queues", count, NONE))
            level = self.first_level + table.levels[plan.level(channel.level).name]
            arena.append("channels", (
                self.first_queues[-1], channel.members, channel.slots, storage, channel.slot_bytes, units, 0,
                level,
            ))  # fmt: skip
        for flag in plan.flags:
            units = plan.instances(flag.level)
            key = (self.resources.level.name, flag.name)
            first = simulation.lasting_flags.get(key, NONE) if flag.installed else NONE
            if first == NONE:
                first = arena.extend("counters", units * flag.members, NONE)
                arena.rows("counters")[first:, 0] = 0
            if flag.installed:
                simulation.lasting_flags[key] = first
            level = self.first_level + table.levels[plan.level(flag.level).name]
            arena.append("flags", (first, flag.members, units, level))
        for members in table.members:
            arena.append("rendezvous", (0, len(members), 0, NONE, NONE))
        arena.append("launches", (
            table.first_slot, table.alias_base, self.channels, self.flags, self.rendezvous, self.first_level,
            table.storages, arena.used["units"], *[0] * 7,
        ))  # fmt: skip

    def _describe_levels(self, simulation: Simulation) -> None:
        """Add the levels, and what is private to their units."""
        plan, table, arena = self.plan, self.table, self.arena
        for i, (level, view) in enumerate(zip(plan.all_levels, self.views, strict=True)):
            memory = table.memory_base + i * table.storages
            parent = NONE if level.parent is None else self.first_level + table.levels[level.parent]
            streams, one, places = table.level_lists[i]
            fixed = level.slots is None and (parent == NONE or arena.rows("levels")[parent, LevelRow.fixed])
            arena.append("levels", (
                parent, level.count, places, units_below(view.hda, level, plan) if plan.levels else 0,
                view.level.total if plan.levels else 0, plan.instances(level.name), streams, one, memory,
                self.first + self.offsets[i], 0, 0, 0, int(fixed),
                0, view.to_begin_ps,
            ))  # fmt: skip
            if table.memories:
                private = np.array([view.private(name) for name in table.memories])
                rows = arena.rows("storages")[memory : memory + table.storages]
                rows[:, Storage.private] = private[rows[:, Storage.memory]]
                self._describe_blocks(simulation, view, memory)

    def _describe_blocks(self, simulation: Simulation, view: Resources, memory: int) -> None:
        """Describe the blocks of tiles in front of whose memory a level sees caches."""
        table, found = self.table, list[tuple[int, int, int]]()
        for name in table.memories:
            for tile, shape in view.bricks(name).items():
                number = table.tiles[tile]
                described = self.plan.tiles[number]
                grid = [-(-extent // size) for extent, size in zip(described.shape, shape, strict=True)]
                size = prod(shape) * itemsize(described.dtype)
                base = table.base[number]
                at = simulation.code_tables.raw([len(shape), size, 0, *shape, *grid])
                found.append((memory + base, described.versions, at))
                self._cached_tiles.append((at + 2, base, described, shape))
        if found:
            simulation.tabulate()
        for first, versions, at in found:
            self.arena.rows("storages")[first : first + versions, Storage.blocks] = at

    def _tensor_key(
        self, tile: pm.Tile, shape: tuple[int, ...], addresses: Mapping[str, Any] | None
    ) -> tuple[Any, ...] | None:
        """Return the cache key of a tensor that outlives its launch: its memory, and how it is cut. That is
        known by its address, where a host gives one, or by its name; None where it does not outlive it."""
        if tile.role == "local" or (addresses is not None and tile.name not in addresses):
            return None
        name = tile.name if tile.offset is None else ""
        name = name if addresses is None else addresses[tile.name]
        where = self.plan.scale, place_numbers(self.plan)
        return name, where, replace(tile, name="", role="", versions=1), shape, tile.versions

    def _add_instances(self) -> None:
        """Add rows for the instances that are there from the beginning, and the slots of the others."""
        arena, plan, row = self.arena, self.plan, self.arena.rows("launches")[self.number]
        arena.extend("places", self.offsets[-1], NONE)
        self.levels: list[LevelRows] = []
        for i in range(len(plan.all_levels)):
            self.levels.append(LevelRows(self, i))
        first = arena.used["children"]
        for rows in self.levels:
            found = [other for other in self.levels if other.above is rows]
            if found:
                rows.link_children(found)
        roots = [rows for rows in self.levels if rows.above is None and rows.level.slots is not None]
        at = arena.extend("children", len(roots), NONE)
        for k, rows in enumerate(roots):
            rows.describe(arena.rows("children")[at + k : at + k + 1], NONE)
        self._units = slice(int(row[LaunchRow.first_unit]), arena.used["units"])
        row[LaunchRow.units] = self._units.stop - self._units.start
        row[LaunchRow.first_root], row[LaunchRow.roots] = at, len(roots)
        self._children = slice(first, arena.used["children"])

    # using them

    @property
    def row(self) -> Any:
        """Its row of `launches`."""
        return self.arena.rows("launches")[self.number]

    @property
    def units(self) -> Any:
        """Its rows of `units`."""
        return self.arena.rows("units")[self._units]

    @property
    def places(self) -> Any:
        """The hardware units of all instances (NONE: one has not begun)."""
        return self.arena.rows("places")[self.first : self.first + self.offsets[-1]]

    def restart(
        self,
        begin: int,
        first_flow: int,
        serial: int,
        tensors: TensorNumbers,
        addresses: Mapping[str, Any] | None = None,
    ) -> None:
        """Set all rows as they are before the launch begins; ``serial`` counts the launches."""
        plan, arena, units = self.plan, self.arena, self.units
        if self._fresh is not None:
            units[:], units[:, self._fresh[1]] = self._fresh[0], self._fresh[2]
        elif self.beside:
            differ = np.flatnonzero((units != units[:1]).any(axis=0))
            self._fresh = units[:1].copy(), differ, units[:, differ]
        for at, base, tile, shape in self._cached_tiles:
            key = self._tensor_key(tile, shape, addresses)
            arena.rows("lists")[at] = 0 if key is None else tensors.find(key) - base
        flow = first_flow
        for i, channel in enumerate(plan.channels):
            arena.rows("channels")[self.channels + i, ChannelRow.first_flow] = flow
            count = plan.instances(channel.level) * channel.members
            flow += count
            rows = arena.rows("launch_queues")[self.first_queues[i] : self.first_queues[i] + count]
            if channel.installed:
                rows[:] = NONE
            rows[:, LaunchQueue.sent] = 0
        self.flows = range(first_flow, flow + 2 * self.offsets[-1])
        for level in self.levels:
            level.restart(self, begin, flow)
        arena.rows("children")[self._children, Children.waiting] = 0
        self.queue_ends = {q: self.queue_ends[q] for q in self.own_queues}
        queues, slots = arena.rows("queues"), arena.rows("slots")
        for q in self.own_queues:
            queues[q, [Queue.sent, Queue.taken]] = 0
            queues[q, [Queue.data_waiter, Queue.credit_waiter]] = NONE
            slots[queues[q, Queue.ring] : queues[q, Queue.ring] + queues[q, Queue.slots]] = st.UNKNOWN
        for i, flag in enumerate(plan.flags):
            first = int(arena.rows("flags")[self.flags + i, FlagRow.first_counter])
            if not flag.installed:
                counters = plan.instances(flag.level) * flag.members
                arena.rows("counters")[first : first + counters] = (0, NONE, NONE)
        arena.launches[self.number].update(unfinished=self.busy, last=begin, began=begin, serial=serial)
        self.caches = arena.rows("caches").copy()
        self.first_record = arena.record_base + arena.recorded
        self.first_aux = arena.words_base + arena.recorded_words

    @property
    def begun(self) -> bool:
        """Whether an instance of the launch has begun."""
        spans = zip(self.levels, self.offsets, self.offsets[1:], strict=False)
        return any(rows.begun(self.places[first:last]) for rows, first, last in spans)

    def do_nothing(self) -> None:
        """Let all instances of a launch that has not begun end at once, by the stream that does nothing."""
        arena = self.arena
        described = arena.rows("levels")[self.first_level : self.first_level + len(self.levels)]
        busy = described[:, [LevelRow.stream_list, LevelRow.stream]].max(axis=1) != NONE
        described[busy, LevelRow.stream], described[:, LevelRow.stream_list] = IDLE_STREAM, NONE
        described[:, LevelRow.start_at] = 0
        self.units[:, UnitRow.pc] = arena.streams[IDLE_STREAM].first_pc

    # names

    def which(self, actor: int) -> tuple[int, int]:
        """Level (counted in the plan) and number of an instance."""
        level = bisect_right(self.offsets, actor - self.first) - 1
        return level, actor - self.first - self.offsets[level]

    def chooser(self, actor: int) -> Any:
        """Return an instance as data execution names it: its number, with its level where that is not the
        first."""
        level, number = self.which(actor)
        return number if not level else (self.plan.all_levels[level].name, number)

    def name(self, level: int, number: int, place: int) -> str:
        """Return where an instance stands, and which one it is where that is not enough."""
        if not self.plan.levels:
            return self.resources.names[number]
        there = self.views[level].names[place] if place != NONE else ""
        own = f"{self.plan.all_levels[level].name}{number}" if level or self._crowded else ""
        return "/".join(part for part in (there, own) if part)

    @cached_property
    def _crowded(self) -> bool:
        """Whether two units of the first level stand at one place."""
        return len(set(place_numbers(self.plan))) < self.plan.units

    def names(self, places: Any) -> list[str]:
        """Return what all instances are called."""
        if not self.plan.levels:
            return self.resources.names
        spans = zip(self.offsets, self.offsets[1:], strict=False)
        return [
            self.name(level, number, place)
            for level, (first, last) in enumerate(spans)
            for number, place in enumerate(places[first:last].tolist())
        ]
