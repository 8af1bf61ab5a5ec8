"""The instances that come to one instruction: what one of them asks, all of them are answered at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.sim.instructions import BRANCH, BranchRow, InstructionRow, JumpRow
from megatile.sim.state import NONE, LevelRow, RegionRow, UnitRow

if TYPE_CHECKING:
    from megatile.sim.launch_rows import LaunchRows
    from megatile.sim.simulation import Simulation

Array = Any


class StreamPeers:
    """The rows of a level that have one stream, and where they are; at an instruction, with the integers of
    one of them."""

    def __init__(
        self, simulation: Simulation, launched: LaunchRows, level: int, stream: int, pc: int, frame: int = 0
    ) -> None:
        self.arena, self.launched, self.level = simulation.arena, launched, level
        self.view, self.pc, self.frame = launched.views[level], pc, frame
        self.meanings, self.first = simulation.code_tables.meanings, launched.table.streams[stream].first
        self.code = simulation.code_tables.code
        self.described = simulation.arena.rows("levels")
        self.all_levels = launched.levels
        self.level_rows = self.all_levels[level]
        self.fixed = self.level_rows.fixed
        self.units, self.places = self.level_rows.of_stream(stream)
        """Rows, counted from the first of the level; of a level without slots also the instances' numbers."""
        if self.fixed:
            self._leave_out(self.first)

    @classmethod
    def to(cls, simulation: Simulation, g: int) -> StreamPeers:
        """Return those with the stream of an instance."""
        launched, level, _ = simulation.view(g)
        number, pc, frame = simulation.arena.rows("units")[
            g, [UnitRow.number, UnitRow.pc, UnitRow.frame]
        ].tolist()
        return cls(simulation, launched, level, int(launched.table.stream_of[level][number]), pc, frame)

    def _leave_out(self, first: int) -> None:
        """Leave out those that never come to the instruction: the branches around it say so."""
        for row in self.code[first : self.pc]:
            if row[InstructionRow.kind] == BRANCH:
                orelse = row[BranchRow.orelse]
                end = self.code[orelse - 1][JumpRow.target]
                taken, always = self.value(row[BranchRow.condition])
                if always and self.pc < end:
                    chosen = (taken != 0) == (self.pc < orelse)
                    self.units, self.places = self.units[chosen], self.places[chosen]

    def value(self, x: int) -> tuple[Array, bool]:
        return self.meanings[x].of_all(self.units, self.arena.rows("frames")[self.frame :])

    def seen(self, level: int, numbers: Array) -> tuple[Array, Array] | None:
        """Return where they reach instances of a level (counted in the plan), and which of these there are;
        None where that is not the same all the time."""
        other = self.described[self.launched.first_level + level]
        if not other[LevelRow.fixed]:
            return None
        there = (numbers >= 0) & (numbers < other[LevelRow.count])
        place = self.all_levels[level].places[np.where(there, numbers, 0)]
        return self.as_seen(place, int(other[LevelRow.hardware])), there

    def as_seen(self, place: Array, count: int) -> Array:
        """Return some of ``count`` hardware units as these see them."""
        mine = int(self.described[self.launched.first_level + self.level, LevelRow.hardware])
        if count >= mine:
            return place if count == mine else place * mine // count
        return np.where(self.places * count // mine == place, self.places, place * (mine // count))


def is_own(region: list[int]) -> bool:
    """Return whether a region is always the instance's own."""
    return region[RegionRow.owner] == NONE and region[RegionRow.piece] == NONE
