"""The rows of one level of a launch: its instances, or the slots in which they take turns.

An instance needs a row of `units`, a frame, lists of unfinished accesses and queues of engines. Those of a
level with slots, and all below them, take turns in the rows of their slots: memory grows with what is there
at a time, not with what is launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.plan import model as pm
from megatile.plan.cohort import of_units
from megatile.plan.residency import units_below
from megatile.sim import state as st
from megatile.sim.state import NONE, Children, Device, EngineQueue, LevelRow, Pool, UnitRow

if TYPE_CHECKING:
    from megatile.hda import HDA
    from megatile.sim.arena import Arena
    from megatile.sim.launch_rows import LaunchRows

_FIRST = np.zeros(UnitRow.width, dtype=np.int64)
"""What rows of `units` hold at first."""
_FIRST[UnitRow.state] = st.OVER
_FIRST[
    [
        UnitRow.cause, UnitRow.visible, UnitRow.visible_by, UnitRow.blocked_on, UnitRow.blocked_since,
        UnitRow.chosen_queue, UnitRow.followers, UnitRow.pool, UnitRow.next_waiter, UnitRow.over_by,
        UnitRow.parent,
    ]
] = NONE  # fmt: skip


def describe_devices(arena: Arena, hda: HDA) -> None:
    """Fill the rows of `devices` of a machine whose libraries have kernels, once."""
    if not arena.used["devices"]:
        blocks, devices = (hda.level(hda.scale(name).level).total for name in ("block", "device"))
        arena.extend("devices", devices)
        arena.rows("devices")[:devices] = blocks // devices, 0, NONE, 0


class LevelRows:
    """The rows of one level; those below it come later."""

    def __init__(self, launch: LaunchRows, number: int) -> None:
        self.arena, self.number = launch.arena, number
        self.level, self.view = launch.plan.all_levels[number], launch.views[number]
        self.streams = launch.table.stream_of[number]
        """The stream of every instance."""
        self.above = next((rows for rows in launch.levels if rows.level.name == self.level.parent), None)
        self.has_children = False
        self.fixed: bool = self.level.slots is None and (self.above is None or self.above.fixed)
        """Whether row i has instance i from the beginning."""
        self.pools = range(0)
        self.pool_of: Any = NONE
        """Of every instance above (or of the one launch), the pool in which those below it take turns."""
        self.places: Any = np.arange(launch.plan.units)
        """The hardware unit of every row; of a plan with one level: the unit."""
        self._place(launch)
        self.roots = np.full(len(self), self.above is None) if launch.plan.levels else self.streams != NONE
        """Which of its rows begin with the launch, if they have instances from the beginning."""
        self._fill(launch)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def numbers(self) -> Any:
        """The numbers of its rows in `units`."""
        return np.arange(self.first, self.first + len(self))

    @property
    def units(self) -> Any:
        """Its rows of `units`."""
        return self.arena.rows("units")[self.first : self.first + len(self)]

    @cached_in_owner
    def of_stream(self, stream: int) -> tuple[Any, Any]:
        """Return those that have a stream (all, where instances take turns in them), and where they are."""
        mine = np.flatnonzero(self.streams == stream) if self.fixed else np.arange(len(self))
        return mine, self.places[mine]

    # making them

    def _place(self, launch: LaunchRows) -> None:
        """Find where instances are and what they are part of, or where their slots are."""
        plan, level, above = launch.plan, self.level, self.above
        pools: Any = NONE
        below = units_below(self.view.hda, level, plan) if plan.levels else 0
        outer = np.zeros(1, dtype=np.int64) if above is None else above.places * below
        if plan.levels and level.slots is None:
            self.places = (outer[:, None] + of_units(level.place, level.count)[None, :]).ravel()
        elif level.slots is not None:
            bases, crowd = np.unique(outer, return_counts=True)
            slots = np.minimum(below * level.slots, crowd * level.count)
            # Other launches, or kernels of libraries, may have the first ones.
            kernels = self.view.hda.transports and (launch.beside or pm.Start in plan.kinds)
            if kernels or (above is None and launch.beside):
                slots[:] = below * level.slots
            first, ends = self.arena.extend("pools", len(bases), NONE), np.cumsum(slots)
            self.pools = range(first, first + len(bases))
            number = np.repeat(np.arange(len(bases)), slots)
            self.places = bases[number] + (np.arange(len(number)) - (ends - slots)[number]) % below
            pools, self.pool_of = first + number, first + np.searchsorted(bases, outer)
        self.first = self.arena.extend("units", len(self.places))
        units = self.units
        units[:], units[:, UnitRow.predecessors] = _FIRST, int(not self.pools)
        units[:, UnitRow.level], units[:, UnitRow.launch] = launch.first_level + self.number, launch.number
        units[:, UnitRow.place], units[:, UnitRow.pool] = self.places, pools
        if above is not None and level.slots is None:
            units[:, UnitRow.parent] = np.repeat(above.numbers, level.count)
        if self.pools:
            rows, flags = self._rows_of_pools, self.arena.extend("free_units", len(self))
            rows[:, Pool.units], rows[:, Pool.first_unit] = slots, self.first + ends - slots
            rows[:, Pool.flags], rows[:, Pool.below] = flags + ends - slots, 1
            hda = self.view.hda
            if hda.transports and self.view.level.position < (device := hda.level("device")).position:
                describe_devices(self.arena, hda)
                rows[:, Pool.below] = self.view.level.total // device.total
                rows[:, Pool.device] = bases * device.total // self.view.level.total
                first_pools = self.arena.rows("devices")[:, Device.pools]
                for pool, row in zip(self.pools, rows, strict=True):
                    row[Pool.next_of_device] = first_pools[row[Pool.device]]
                    first_pools[row[Pool.device]] = pool

    @property
    def _rows_of_pools(self) -> Any:
        return self.arena.rows("pools")[self.pools.start : self.pools.stop]

    def _fill(self, launch: LaunchRows) -> None:
        """Give every row a frame, lists of accesses and queues of engines; those with a stream wait."""
        arena, table, count = self.arena, launch.table, len(self)
        engines = table.engine_queue_count(self.view.message_queues if launch.plan.channels else 1)
        sizes = np.array([len(s.frame) for s in table.streams] + [0])
        used = sizes[self.streams]
        if not self.fixed:
            used = np.full(count, used.max(initial=0))
        slots = table.storages - table.first_slot
        self.named_slots = arena.extend("named_slots", slots * count), slots
        self.engine_queues = arena.extend("engine_queues", engines * count), engines
        """Where the slots and the engines of its rows begin, and how many each row has."""
        lists = arena.extend("access_lists", table.storages * count, NONE)
        arena.extend("pending_writes", table.storages * count)
        self._share_engines(launch)
        described = arena.rows("levels")[launch.first_level + self.number]
        described[LevelRow.first_unit], described[LevelRow.engine_queues] = self.first, engines
        units, index = self.units, np.arange(count)
        units[:, UnitRow.frame] = arena.extend("frames", int(used.sum())) + np.cumsum(used) - used
        begins = {
            UnitRow.access_lists: (lists, table.storages),
            UnitRow.named_slots: self.named_slots,
            UnitRow.engine_queues: self.engine_queues,
        }
        for column, (at, width) in begins.items():
            units[:, column] = at + width * index
        if self.fixed:
            units[:, UnitRow.number] = index
            units[:, UnitRow.actor] = launch.first + launch.offsets[self.number] + index
            units[:, UnitRow.pc] = np.array([s.first for s in table.streams] + [0])[self.streams]
            units[self.roots, UnitRow.state], units[self.roots, UnitRow.parts] = st.PENDING, 1

    def _share_engines(self, launch: LaunchRows) -> None:
        """Find the servers of engines that several instances share."""
        paths, names, (first, engines) = launch.paths, launch.table.engine_names, self.engine_queues
        rows = self.arena.rows("engine_queues")[first : first + engines * len(self)]
        rows[:, EngineQueue.server] = NONE
        for engine in sorted(launch.table.used_engine_queues) if len(self) and paths.contended else ():
            name = names[engine]
            if self.view.engine_resource(name, 0) is None:
                continue
            keys = [self.view.engine_resource(name, place) for place in self.places.tolist()]
            described = self.view.engine(name)
            of_kinds = described is not None and described.shares is not None
            if launch.plan.levels or of_kinds or len(set(keys)) < len(keys) or paths.everything_shared:
                messages = range(len(names), engines) if name == "dma" else ()
                for channel, queue in enumerate((engine, *messages)):
                    keys = [self.view.engine_resource(name, place, channel) for place in self.places.tolist()]
                    rows[queue::engines, EngineQueue.server] = [paths.server(key, 1) for key in keys]

    def link_children(self, found: list[LevelRows]) -> None:
        """Describe what is below every row."""
        self.has_children, count = True, len(found)  # not the rows themselves, which know this one
        first = self.arena.extend("children", count * len(self), NONE)
        self.units[:, UnitRow.children] = first + count * np.arange(len(self))
        self.units[:, UnitRow.child_levels] = count
        rows = self.arena.rows("children")[first:]
        for k, child in enumerate(found):
            child.describe(rows[k::count], self.numbers)

    def describe(self, rows: Any, parents: Any) -> None:
        """Fill rows of `children` for the instances of this level in each of the parents."""
        rows[:, Children.count], rows[:, Children.parent] = self.level.count, parents
        rows[:, Children.pool] = self.pool_of
        if self.level.slots is None:
            rows[:, Children.first_unit] = self.first + self.level.count * np.arange(len(rows))

    # using them

    def restart(self, launch: LaunchRows, begin: int, flows: int) -> None:
        """Set all rows as they are before the launch begins; its first flow that is not a queue's."""
        arena, offsets = self.arena, launch.offsets[self.number : self.number + 2]
        described, units = arena.rows("levels")[launch.first_level + self.number], self.units
        described[LevelRow.first_flow] = flows + offsets[0]
        described[LevelRow.stream_list], described[LevelRow.stream], _ = launch.table.level_lists[self.number]
        described[LevelRow.start_at] = begin + self.view.start_ps(0) - launch.resources.start_ps(0)
        units[:, UnitRow.now] = begin
        at, engines = self.engine_queues
        arena.rows("engine_queues")[at : at + engines * len(self), : EngineQueue.server] = (0, NONE, NONE)
        at, slots = self.named_slots
        arena.rows("named_slots")[at : at + slots * len(self)] = 0
        launch.places[slice(*offsets)] = self.places if self.fixed else NONE
        if self.fixed:
            units[:, UnitRow.flow] = described[LevelRow.first_flow] + units[:, UnitRow.number]
        for n, stream in enumerate(launch.table.streams if not launch.plan.levels else ()):
            mine, _ = self.of_stream(n)
            first, size = units[mine, UnitRow.frame], len(stream.frame)
            arena.rows("frames")[first[:, None] + np.arange(size)] = stream.frame
            arena.rows("frames")[first] = mine
        if self.pools:
            rows = self._rows_of_pools
            rows[:, [Pool.first_waiting, Pool.last_waiting, Pool.due]] = NONE
            self.free_slots([])

    def free_slots(self, taken: list[int]) -> None:
        """Let all slots be free but those that earlier launches have."""
        rows, free = self._rows_of_pools, np.ones(len(self), dtype=np.int64)
        free[np.array(taken, dtype=np.int64) - self.first] = 0
        self.arena.rows("free_units")[rows[0, Pool.flags] :][: len(self)] = free
        pools = self.units[:, UnitRow.pool] - self.pools.start
        rows[:, Pool.free], rows[:, Pool.lowest] = np.bincount(pools, free, len(rows)), 0

    def begun(self, places: Any) -> bool:
        """Return whether an instance has begun; ``places`` are those of all of the level."""
        if not self.fixed:
            return bool((places != NONE).any())
        return bool((self.units[self.roots, UnitRow.state] != st.PENDING).any())
