"""Units of the hardware that launches hold: those that take turns queue up behind each other."""

from __future__ import annotations

from megatile.sim import plain, state as st
from megatile.sim.launch_rows import LaunchRows
from megatile.sim.level_rows import LevelRows
from megatile.sim.state import NONE, LaunchRow, Pool, UnitRow
from megatile.timing.resources import Resources


class Occupancy:
    """Which instances or slots the last launch on each unit of the hardware has there."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[int, list[int]]] = {}
        """By level and hardware unit, rows of `units`."""

    def wait_for_earlier(self, launch: LaunchRows, at: int) -> None:
        """Let every instance or slot without a parent wait for those before it on its hardware unit."""
        units, before = launch.arena.rows("units"), list[tuple[int, int]]()
        taken: list[tuple[dict[int, list[int]], int, list[int]]] = []
        first, count = launch.row[[LaunchRow.first_unit, LaunchRow.units]].tolist()
        for level in launch.levels:
            if level.above is not None or not (level.has_children or (level.streams != NONE).any()):
                continue
            there = self._owners.setdefault(level.view.level.name, {})
            for place, mine in self._by_place(launch, level).items():
                held = [
                    h
                    for h in self._holding(level.view, place)
                    if not first <= h < first + count
                    if units[h, UnitRow.parts] > 0
                    or units[h, UnitRow.over_at] > at
                    or self._still_used(launch, int(units[h, UnitRow.pool]))
                ]
                before += [(g, h) for h in held for g in mine]
                # Nobody may ever take a slot of this launch: who comes next also waits for those before.
                kept = [h for h in there.get(place, ()) if h in held] if level.pools else []
                taken.append((there, place, mine + kept))
        for there, place, mine in taken:
            there[place] = mine
        for g, h in before:
            units[h, UnitRow.followers] = plain.engine().new_node(
                launch.arena.memory, units[h, UnitRow.followers], g
            )
            units[g, UnitRow.predecessors] += 1
        for level in launch.levels:
            mine = [g for g, _ in before if units[g, UnitRow.pool] in level.pools]
            if mine:
                level.free_slots(mine)

    @staticmethod
    def _by_place(launch: LaunchRows, level: LevelRows) -> dict[int, list[int]]:
        """By hardware unit, the rows of a level that begin with the launch, or its slots."""
        found: dict[int, list[int]] = {}
        rows = level.units[:, [UnitRow.state, UnitRow.place]].tolist()
        for g, (state, place) in enumerate(rows, level.first):
            if state == st.PENDING or level.pools:
                found.setdefault(place if launch.plan.levels else level.view.places[place], []).append(g)
        return found

    def _holding(self, resources: Resources, place: int) -> list[int]:
        """Return the rows that hold a unit of the hardware, or one that is in it or around it."""
        found: list[int] = []
        for name, there in self._owners.items():
            mine, other = resources.level.total, resources.hda.level(name).total
            if other <= mine:
                found += there.get(place * other // mine, ())
            else:
                per = other // mine
                found += [h for p in range(place * per, (place + 1) * per) for h in there.get(p, ())]
        return found

    @staticmethod
    def _still_used(launch: LaunchRows, pool: int) -> bool:
        """Return whether instances may still take a slot: some wait for one, or their launch has not
        begun."""
        if pool == NONE:
            return False
        first, last = launch.arena.rows("pools")[pool, [Pool.first_waiting, Pool.last_waiting]].tolist()
        return bool(first != NONE or last == NONE)
