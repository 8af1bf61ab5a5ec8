"""Rows for the instances of a launch: all that are there from the beginning, and the slots of the others.

An instance needs a row of `units`, a frame, lists of unfinished accesses and queues of engines. Those of a
level with slots, and all below them, take turns in the rows of their slots: memory grows with what is there
at a time, not with what is launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.cohort import of_units
from megatile.plan.residency import units_below
from megatile.sim import state as st
from megatile.sim.state import NONE, Children, EngineQueue, LaunchRow, LevelRow, Pool, StreamRow, UnitRow

if TYPE_CHECKING:
    from megatile.sim.simulation import LaunchRows, Simulation


_NOTHING = (
    UnitRow.cause,
    UnitRow.visible,
    UnitRow.visible_by,
    UnitRow.waits_for,
    UnitRow.blocked_since,
    UnitRow.chosen_queue,
    UnitRow.followers,
    UnitRow.pool,
    UnitRow.next_waiter,
    UnitRow.over_by,
)
"""Columns of `unit` in which instances have nothing at first."""


class LevelRows:
    """The rows of one level: the first, how many; per row its place and the row of its parent."""

    def __init__(
        self, first: int, places: Any, parents: Any, pools: Any, fixed: bool, pool_of: Any = None
    ) -> None:
        self.first, self.places, self.parents, self.pools = first, places, parents, pools
        self.fixed, self.pool_of = fixed, pool_of
        """Whether row i has instance i from the beginning."""
        self.held = self.tails = (0, 0)
        """Where the slots and the engines of its rows begin, and how many each row has."""
        self._of_stream: dict[int, tuple[Any, Any]] = {}

    def __len__(self) -> int:
        return len(self.places)

    def of_stream(self, streams: Any, stream: int) -> tuple[Any, Any]:
        """Those that have a stream (all, where instances take turns in them), and where they are."""
        if stream not in self._of_stream:
            mine = np.flatnonzero(streams == stream) if self.fixed else np.arange(len(self))
            self._of_stream[stream] = mine, self.places[mine]
        return self._of_stream[stream]

    @property
    def all(self) -> slice:
        return slice(self.first, self.first + len(self))


class Instances:
    """The rows of a launch; they serve again when it has ended."""

    def __init__(self, simulation: Simulation, launched: LaunchRows) -> None:
        self.arena, self.launched = simulation.arena, launched
        self.beside = simulation.paths.everything_shared
        self.plan, self.table = launched.plan, launched.table
        self.arena.extend("places", launched.offsets[-1], NONE)
        self.levels: dict[str, LevelRows] = {}
        self.children: dict[str, list[pm.Level]] = {level.name: [] for level in self.plan.all_levels}
        self.pools = range(self.arena.used["pools"], self.arena.used["pools"])
        self.first = self.arena.used["units"]
        for level in self.plan.all_levels:
            self.levels[level.name] = self._rows(level)
            if level.parent is not None:
                self.children[level.parent].append(level)
        for i, level in enumerate(self.plan.all_levels):
            self._fill(simulation, i, self.levels[level.name])
        self.below = range(self.arena.used["children"], self.arena.used["children"])
        self._below()
        self.pools = range(self.pools.start, self.arena.used["pools"])
        self.below = range(self.below.start, self.arena.used["children"])
        self.count = self.arena.used["units"] - self.first
        self.idle: tuple[Any, Any, Any] | None = None
        """What the rows hold before the launch begins, if others may have them after it: one of them, and the
        columns in which they differ."""
        self.arena.rows("launches")[launched.number, LaunchRow.units] = self.count

    def roots(self) -> Iterator[tuple[Any, Any]]:
        """Rows of the levels that have no parent and something to do, and the machine as these see it."""
        for i, (level, view) in enumerate(zip(self.plan.all_levels, self.launched.views, strict=True)):
            busy = bool(self.children[level.name]) or (self.table.stream_of[i] != NONE).any()
            if level.parent is None and busy:
                rows = self.levels[level.name]
                yield view, np.arange(rows.first, rows.first + len(rows))

    def restart(self, begin: int, flows: int) -> None:
        """All rows as they are before the launch begins; its first flow that is no queue's."""
        arena, launched, table = self.arena, self.launched, self.table
        units = arena.rows("units")
        mine = units[self.first : self.first + self.count]
        if self.idle is not None:
            mine[:], mine[:, self.idle[1]] = self.idle[0], self.idle[2]
        elif self.beside:
            own = np.flatnonzero((mine != mine[:1]).any(axis=0))
            self.idle = mine[:1].copy(), own, mine[:, own]
        places = arena.rows("places")[launched.first : launched.first + launched.offsets[-1]]
        starts = [view.start_ps(0) for view in launched.views]
        for i, level in enumerate(self.plan.all_levels):
            rows, described = self.levels[level.name], arena.rows("levels")[launched.levels + i]
            described[LevelRow.first_flow] = flows + launched.offsets[i]
            described[LevelRow.stream_list], described[LevelRow.stream], _ = table.level_lists[i]
            described[LevelRow.start_at] = begin + starts[i] - starts[0]
            u = units[rows.all]
            u[:, UnitRow.now] = begin
            at, engines = rows.tails
            arena.rows("engine_queues")[at : at + engines * len(rows), :3] = (0, NONE, NONE)
            at, slots = rows.held
            arena.rows("held_slots")[at : at + slots * len(rows)] = 0
            places[launched.offsets[i] : launched.offsets[i + 1]] = rows.places if rows.fixed else NONE
            if rows.fixed:
                u[:, UnitRow.flow] = described[LevelRow.first_flow] + u[:, UnitRow.number]
            if not self.plan.levels:
                for n, stream in enumerate(table.streams):
                    mine, _ = rows.of_stream(table.stream_of[0], n)
                    first, size = u[mine, UnitRow.frame], len(stream.frame)
                    arena.rows("frames")[first[:, None] + np.arange(size)] = stream.frame
                    arena.rows("frames")[first] = mine
        if not self.pools:
            return
        pools = arena.rows("pools")[self.pools.start : self.pools.stop]
        pools[:, Pool.free] = pools[:, Pool.units]
        pools[:, [Pool.first_waiting, Pool.last_waiting, Pool.due]] = NONE
        for pool in pools.tolist():
            at, first, count = pool[Pool.heap], pool[Pool.first_unit], pool[Pool.units]
            arena.rows("free_units")[at : at + count] = np.arange(first, first + count)
        arena.rows("children")[self.below.start : self.below.stop, Children.waiting] = 0

    @property
    def begun(self) -> bool:
        """Whether an instance of the launch has begun."""
        units, places = self.arena.rows("units"), self.arena.rows("places")[self.launched.first :]
        for i, rows in enumerate(self.levels.values()):
            if not rows.fixed:
                first, last = self.launched.offsets[i : i + 2]
                if (places[first:last] != NONE).any():
                    return True
            elif (
                units[rows.all, UnitRow.state][(rows.parents == NONE) & self._awaited(i)] != st.PENDING
            ).any():
                return True
        return False

    def _awaited(self, i: int) -> Any:
        """Which rows of a level wait for the launch to begin."""
        return self.table.stream_of[i] != NONE if not self.plan.levels else True

    def do_nothing(self, stream: int) -> None:
        """Let all instances of a launch that has not begun end at once, by a stream that does nothing."""
        arena, launched = self.arena, self.launched
        described = arena.rows("levels")[launched.levels : launched.levels + len(self.levels)]
        busy = described[:, [LevelRow.stream_list, LevelRow.stream]].max(axis=1) != NONE
        described[busy, LevelRow.stream], described[:, LevelRow.stream_list] = stream, NONE
        described[:, LevelRow.start_at] = 0
        pc = arena.rows("streams")[stream, StreamRow.first_pc]
        arena.rows("units")[self.first : self.first + self.count, UnitRow.pc] = pc

    def take_away(self, seats: set[int]) -> None:
        """Some slots are not free yet: earlier launches have them."""
        arena = self.arena
        for pool in self.pools if seats else ():
            row = arena.rows("pools")[pool]
            at, first, count = row[[Pool.heap, Pool.first_unit, Pool.units]].tolist()
            free = [g for g in range(first, first + count) if g not in seats]
            arena.rows("free_units")[at : at + len(free)] = free
            row[Pool.free] = len(free)

    def _rows(self, level: pm.Level) -> LevelRows:
        plan, arena = self.plan, self.arena
        if not plan.levels:
            places = np.arange(plan.units)
            return LevelRows(arena.extend("units", plan.units), places, np.full(plan.units, NONE), None, True)
        below = units_below(self.launched.resources.hda, level, plan)
        above = self.levels[level.parent] if level.parent is not None else None
        outer = np.zeros(1, dtype=np.int64) if above is None else above.places * below
        if level.slots is None:
            places = (outer[:, None] + of_units(level.place, level.count)[None, :]).reshape(-1)
            parents = np.full(len(places), NONE)
            if above is not None:
                parents = np.repeat(np.arange(above.first, above.first + len(above)), level.count)
            fixed = above is None or above.fixed
            return LevelRows(arena.extend("units", len(places)), places, parents, None, fixed)
        bases, crowd = np.unique(outer, return_counts=True)
        seats = np.minimum(below * level.slots, crowd * level.count)
        if level.parent is None and self.beside:  # other launches may have the first ones
            seats[:] = below * level.slots
        first_pool = arena.extend("pools", len(bases), NONE)
        pools = np.repeat(np.arange(len(bases)), seats)
        within = np.arange(len(pools)) - np.repeat(np.cumsum(seats) - seats, seats)
        places = bases[pools] + within % below
        first = arena.extend("units", len(places))
        heap = arena.extend("free_units", len(places))
        rows = arena.rows("pools")[first_pool : first_pool + len(bases)]
        rows[:, Pool.units] = seats
        rows[:, Pool.first_unit] = first + np.cumsum(seats) - seats
        rows[:, Pool.heap] = heap + np.cumsum(seats) - seats
        pool_of = first_pool + np.searchsorted(bases, outer)
        return LevelRows(first, places, np.full(len(places), NONE), first_pool + pools, False, pool_of)

    def _fill(self, simulation: Simulation, i: int, rows: LevelRows) -> None:
        """Frames, lists of accesses, queues of engines; who has a stream and waits for the launch."""
        arena, table, launched = self.arena, self.table, self.launched
        count, view = len(rows), launched.views[i]
        slots, engines = table.storages - table.first_slot, table.lanes(view.message_queues)
        streams = table.stream_of[i]
        sizes = np.array([len(s.frame) for s in table.streams] + [0])
        used = sizes[streams] if rows.fixed else np.full(count, sizes[np.unique(streams)].max(initial=0))
        frames = arena.extend("frames", int(used.sum()))
        heads = arena.extend("access_lists", table.storages * count, NONE)
        arena.extend("pending_writes", table.storages * count)
        rows.held = arena.extend("held_slots", slots * count), slots
        rows.tails = arena.extend("engine_queues", engines * count), engines
        self._engines(simulation, view, *rows.tails, rows.places)
        arena.rows("levels")[launched.levels + i, LevelRow.first_unit] = rows.first
        u, index, one = arena.rows("units")[rows.all], np.arange(count), [0] * UnitRow.width
        for column in _NOTHING:
            one[column] = NONE
        one[UnitRow.state], one[UnitRow.predecessors] = st.OVER, int(rows.pools is None)
        one[UnitRow.level], one[UnitRow.launch] = launched.levels + i, launched.number
        u[:] = one
        u[:, UnitRow.place] = rows.places
        u[:, UnitRow.parent] = rows.parents
        u[:, UnitRow.frame] = frames + np.cumsum(used) - used
        if rows.pools is not None:
            u[:, UnitRow.pool] = rows.pools
        begins = {
            UnitRow.access_lists: (heads, table.storages),
            UnitRow.held_slots: rows.held,
            UnitRow.engine_queues: rows.tails,
        }
        for column, (at, width) in begins.items():
            u[:, column] = at + width * index
        if rows.fixed:
            u[:, UnitRow.number] = index
            u[:, UnitRow.actor] = launched.first + launched.offsets[i] + index
            u[:, UnitRow.pc] = np.array([s.first for s in table.streams] + [0])[streams]
            waits = streams != NONE if not self.plan.levels else rows.parents == NONE
            u[:, UnitRow.state], u[:, UnitRow.parts] = np.where(waits, st.PENDING, st.OVER), waits

    def _engines(self, simulation: Simulation, view: Any, first: int, engines: int, places: Any) -> None:
        """The queues of every instance's engines; several instances may share an engine."""
        several, names = bool(self.plan.levels), self.table.engine_names
        self.arena.rows("engine_queues")[first : first + engines * len(places)] = (0, NONE, NONE, NONE)
        for engine in sorted(self.table.queues) if len(places) and simulation.paths.contended else ():
            name = names[engine]
            if view.engine_resource(name, 0) is None:
                continue
            keys = [view.engine_resource(name, place) for place in places.tolist()]
            of_kinds = view.engine(name) is not None and view.engine(name).shares is not None
            if several or of_kinds or len(set(keys)) < len(keys) or simulation.paths.everything_shared:
                servers = [simulation.paths.server(key, 1) for key in keys]
                rows = self.arena.rows("engine_queues")[first : first + engines * len(places)]
                messages = range(len(names), engines) if name == "dma" else ()
                for e in (engine, *messages):
                    rows[e::engines, EngineQueue.server] = servers

    def _below(self) -> None:
        """What is below every row."""
        arena = self.arena
        for level in self.plan.all_levels:
            children, above = self.children[level.name], self.levels[level.name]
            if not children:
                continue
            first = arena.extend("children", len(children) * len(above), NONE)
            u = arena.rows("units")[above.all]
            u[:, UnitRow.children] = first + len(children) * np.arange(len(above))
            u[:, UnitRow.child_levels] = len(children)
            for k, child in enumerate(children):
                rows = arena.rows("children")[first : first + len(children) * len(above)][k :: len(children)]
                self._describe(rows, child, np.arange(above.first, above.first + len(above)))
        roots = [lv for lv in self.plan.levels if lv.parent is None and lv.slots is not None]
        at = arena.extend("children", len(roots), NONE)
        for k, level in enumerate(roots):
            self._describe(arena.rows("children")[at + k : at + k + 1], level, np.full(1, NONE))
        arena.rows("launches")[self.launched.number, [LaunchRow.first_root, LaunchRow.roots]] = at, len(roots)

    def _describe(self, rows: Any, level: pm.Level, parents: Any) -> None:
        own = self.levels[level.name]
        rows[:, Children.count] = level.count
        rows[:, Children.parent] = parents
        if level.slots is not None:
            rows[:, Children.pool] = own.pool_of
        else:
            rows[:, Children.first_unit] = own.first + level.count * np.arange(len(rows))
