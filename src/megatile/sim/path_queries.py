"""What the engine asks about copies: the path of a copy, for all instances that come to its instruction.

Answers are cached in `answers`, by question, or in `figures`, where an instance always needs the same one at
an instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.sim import plain, state as st
from megatile.sim.instructions import COPY, CopyRow, InstructionRow
from megatile.sim.state import NONE, Answer, LevelRow, RegionRow, Storage, TileRow, UnitRow
from megatile.sim.stream_peers import Array, StreamPeers, is_own
from megatile.timing.machine_timing import TimingError

if TYPE_CHECKING:
    from megatile.sim.simulation import Simulation
    from megatile.timing.resources import Resources

MAX_GUESSED = 1 << 16
"""Up to so many instances are answered at once what may be different in every round of a loop."""


class PathQueries:
    """Paths of copies, and the caches of all that was found."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.arena = simulation, simulation.arena

    # what was found

    def cache_answer(self, tag: int, a: int, b: int, c: int, d: int, value: int) -> int:
        answers = self.arena.rows("answers")
        if 2 * (self.simulation.answer_count + 1) > len(answers):
            self.cache_answers(tag, a, b, c, d, [value])
            return value
        self.simulation.answer_count += 1
        h = plain.engine().answer_hash(tag, a, b, c, d) & (len(answers) - 1)
        while answers[h, Answer.question] != NONE:
            h = (h + 1) & (len(answers) - 1)
        answers[h] = tag, a, b, c, d, value
        return value

    def cache_answers(self, *columns: Any) -> None:
        """Cache the answers to many questions of one kind: its number, four others, and what was found."""
        answers, rows = self.arena.rows("answers"), np.stack(np.broadcast_arrays(*columns), axis=1)
        self.simulation.answer_count += len(rows)
        if 2 * self.simulation.answer_count > len(answers):
            asked = answers[:, Answer.question]
            rows = np.concatenate([answers[(asked != NONE) & (asked != st.GONE)], rows])
            self.simulation.answer_count = len(rows)
            self.arena.set_size("answers", max(len(answers), 1 << (4 * len(rows) - 1).bit_length()))
            answers = self.arena.rows("answers")
            answers[:] = NONE
        h = plain.engine().answer_hash(*rows.T[: Answer.value]) & (len(answers) - 1)
        while len(rows):
            free = np.flatnonzero(answers[h, Answer.question] == NONE)
            places, first = np.unique(h[free], return_index=True)
            answers[places] = rows[free[first]]
            left = np.ones(len(rows), dtype=bool)
            left[free[first]] = False
            rows, h = rows[left], (h[left] + 1) & (len(answers) - 1)

    def cache_figures(self, pc: int, count: int, rows: Array, values: Array) -> None:
        """The figures that some of the rows of a level always need at an instruction."""
        code = self.arena.rows("code")
        at = int(code[pc, InstructionRow.figures])
        if at == NONE:
            at = self.arena.extend("figures", count, NONE)
            self.arena.rows("code")[pc, InstructionRow.figures] = at
        self.arena.rows("figures")[at + rows] = values

    # copies

    def path(self, mover: int, memories: int, source: int, target: int, g: int) -> int:
        peers = StreamPeers.to(self.simulation, g)
        view, table = peers.view, peers.launched.table
        if not self.simulation.code_tables.ends(peers.pc):  # then links that it shares were not found
            raise TimingError(
                f"an instruction copies whose ends are not known: {peers.code[peers.pc]}",
                advice="let CodeTables.ends in sim/table.py give the regions of its kind",
            )
        names = table.memories[memories >> 24], table.memories[memories & ((1 << 24) - 1)]
        by = table.movers[mover // 2 // st.MOVERS]
        if (source, target) != (NONE, NONE):
            found = self._paths_at(peers, g, mover, memories, names, by)
            if found != NONE:
                return found
        here = int(self.arena.rows("units")[g, UnitRow.place])
        ends = [here if end == NONE else end for end in (source, target)]
        path = view.path(ends[0], names[0], ends[1], names[1], same=bool(mover & 1), caches=True, by=by)
        number = self.simulation.paths.number(path, view.fabric)
        return self.cache_answer(st.ASK_PATH, mover, memories, source, target, number)

    def _paths_at(
        self, peers: StreamPeers, g: int, mover: int, memories: int, names: tuple[str, str], by: str
    ) -> int:
        """Find the paths of a copy for all instances of a stream, and return that of one of them; NONE where
        it cannot be said."""
        known = peers.launched.ends
        ends = known[peers.pc] if peers.pc in known else self.copy_ends(peers)
        if ends is None or self.arena.rows("code")[peers.pc, InstructionRow.figures] != NONE:
            return NONE
        units, count = peers.units, len(peers.level_rows)
        (here, one), (there, other), possible, always = ends
        same = one == other
        if not possible.all():
            here, there, same, units = here[possible], there[possible], same[possible], units[possible]
        if not always and len(units) > MAX_GUESSED:
            return NONE
        numbers = self._numbers(peers.view, here, names, there, same, by)
        if always:
            self.cache_figures(peers.pc, count, units, numbers)
            kind = self.arena.rows("code")[peers.pc, InstructionRow.kind]
            if kind == COPY and len(units) == count and max(one.max(), other.max()) == NONE:
                self._share_paths(peers, memories)
        else:
            self.cache_answers(st.ASK_PATH, (mover & -2) + same, memories, here, there, numbers)
        return int(numbers[np.searchsorted(units, g - peers.level_rows.first)])

    def _share_paths(self, peers: StreamPeers, memories: int) -> None:
        """Let the other copies of a stream between an instance's own tiles in the same memories have the
        paths of the one that was asked for."""
        tables, code, engine = (
            self.simulation.code_tables,
            self.arena.rows("code"),
            peers.code[peers.pc][CopyRow.engine],
        )
        for pc in tables.rest(peers.first):
            row = tables.code[pc]
            if row[InstructionRow.kind] == COPY and row[CopyRow.engine] == engine and pc != peers.pc:
                ends = [tables.regions[region] for region in tables.ends(pc)]
                if all(end[RegionRow.mode] == st.DECLARED and is_own(end) for end in ends):
                    source, target = (self._stored(peers, end)[Storage.memory] for end in ends)
                    if source << 24 | target == memories:
                        code[pc, InstructionRow.figures] = code[peers.pc, InstructionRow.figures]

    def copy_ends(self, peers: StreamPeers) -> tuple[Any, Any, Array, bool] | None:
        """Return where all instances read and write at an instruction, and who has that (NONE: each its own);
        for which of them that is possible, and whether it is always so. None where it cannot be said."""
        tables, everyone = self.simulation.code_tables, np.ones(len(peers.units), dtype=bool)
        own = peers.places, np.full(len(peers.units), NONE)
        found, possible, always = [], everyone, True
        for region in tables.ends(peers.pc):
            row = None if region == NONE else tables.regions[region]
            if row is not None and row[RegionRow.mode] == st.HANDLE:
                return None
            if row is None or is_own(row):
                found.append(own)
                continue
            end = self._end(peers, row) if row[RegionRow.piece] == NONE else self._piece(peers, row)
            if end is None:
                return None
            possible, always = end[2] if possible is everyone else possible & end[2], always and end[3]
            found.append(end[:2])
        return found[0], found[1], possible, always

    def _piece(self, peers: StreamPeers, row: list[int]) -> tuple[Array, Array, Array, bool] | None:
        """Return the same for a region of a spread tile; the location of its block tells who owns it."""
        if not peers.fixed:
            return None
        stored = self._stored(peers, row)
        level = peers.described[peers.launched.first_level + stored[Storage.over]].tolist()
        numbers, always = peers.value(row[RegionRow.piece])
        pieces, per, places = (
            stored[Storage.pieces],
            level[LevelRow.hardware_per_parent],
            level[LevelRow.places],
        )
        mine, total = (
            int(x[LevelRow.hardware])
            for x in (peers.described[peers.launched.first_level + peers.level], level)
        )
        count = level[LevelRow.per_parent] if places != NONE else min(level[LevelRow.per_parent], per)
        place = np.clip(numbers, 0, pieces - 1) * count // pieces
        if places != NONE:
            place = self.arena.rows("lists")[places + place]
        place = peers.as_seen(peers.places * (total // per) // mine * per + place, total)
        owner = np.where(place == peers.places, NONE, place)
        return place, owner, np.ones(len(place), dtype=bool), always

    def _end(self, peers: StreamPeers, row: list[int]) -> tuple[Array, Array, Array, bool] | None:
        """Return the same of a region that names its owner."""
        stored = self._stored(peers, row)
        if stored[Storage.owners] != NONE or not peers.fixed:
            return None
        owners, always = peers.value(row[RegionRow.owner])
        seen = peers.seen(stored[Storage.level], owners)
        if seen is None:
            return None
        per, level = stored[Storage.per], peers.launched.first_level + stored[Storage.level]
        mine = (peers.units // per == owners) if per else np.zeros(len(owners), dtype=bool)
        owner = np.where(mine, NONE, (level << 40) + owners)
        return np.where(mine, peers.places, seen[0]), owner, seen[1], always

    def _stored(self, peers: StreamPeers, row: list[int]) -> list[int]:
        """Return the row of the storage of a region, as the level of its unit sees it."""
        base = self.simulation.code_tables.tiles[row[RegionRow.tile]][TileRow.base]
        at = int(peers.described[peers.launched.first_level + peers.level, LevelRow.storages]) + base
        found: list[int] = self.arena.rows("storages")[at].tolist()
        return found

    def _numbers(
        self, view: Resources, here: Array, names: tuple[str, str], there: Array, same: Array, by: str
    ) -> Array:
        """Return the numbers of many paths."""
        found = np.empty(len(here), dtype=np.int64)
        for flag, chosen in ((True, same), (False, ~same)):
            if chosen.any():
                option = {"same": flag, "caches": True, "by": by}
                found[chosen] = self.numbered(view, here[chosen], names, there[chosen], option)
        return found

    def numbered(self, view: Resources, a: Array, names: Any, b: Array, options: Any) -> Array:
        key = (id(view), names, a.tobytes(), b.tobytes(), *options.items())
        if key in self.simulation.paths.asked:
            return self.simulation.paths.asked[key]
        paths, found = self.simulation.paths, np.empty(len(a), dtype=np.int64)
        for path, group in view.paths(a, names[0], b, names[1], **options):

            def each(i: int, pairs: Array = group.pairs) -> Any:
                k = pairs[i]
                return view.path(int(a[k]), names[0], int(b[k]), names[1], **options)

            found[group.pairs] = paths.numbers(path, group, view.fabric, each)
        if len(a) <= MAX_GUESSED:
            paths.asked[key] = found
        return found
