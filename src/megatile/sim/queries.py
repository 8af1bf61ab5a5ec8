"""What the engine asks about the machine: figures of queues, paths, work, messages and rendezvous.

The engine calls `MachineQueries.answer` when an instance needs a figure that is not in the tables. The
instances of its stream will need theirs at the same instruction, so all of them are answered at once: what
they would ask is evaluated for all of them with the integers of the one that asks. Where these differ, a
figure was found that nobody needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.core.expr import constant, symbols
from megatile.sim import plain, state as st
from megatile.sim.data import Assumed
from megatile.sim.instructions import (
    BRANCH,
    END,
    RECEIVE,
    SEND,
    START,
    WORK,
    Branch,
    Instruction,
    Jump,
    Receive,
    ReceiveAny,
    Send,
    Signal,
    Work,
)
from megatile.sim.level_rows import describe_devices
from megatile.sim.state import (
    NONE,
    Answer,
    FlagRow,
    LaunchQueue,
    LevelRow,
    Queue,
    RegionRow,
    Storage,
    TileRow,
    UnitRow,
)
from megatile.timing.machine_timing import TimingError

if TYPE_CHECKING:
    from megatile.sim.launch_rows import LaunchRows
    from megatile.sim.simulation import Simulation
    from megatile.timing.resources import Resources

MAX_GUESSED = 1 << 16
"""Up to so many instances are answered at once what may be different in every round of a loop."""
ASKED_AT_ONCE = 1 << 12
"""So many instances are answered at once what value is assumed for each."""
Array = Any


class QueueMisuse(Exception):
    """Something about queues, flags or groups that no plan may do. ``launch`` is the number of who did."""

    launch = NONE


class StreamPeers:
    """The rows of a level that have one stream, and where they are; at an instruction, with the integers of
    one of them."""

    def __init__(
        self, simulation: Simulation, launched: LaunchRows, level: int, stream: int, pc: int, frame: int = 0
    ) -> None:
        self.arena, self.launched, self.level = simulation.arena, launched, level
        self.view, self.pc, self.frame = launched.views[level], pc, frame
        self.meanings, self.first = simulation.rows.meanings, launched.table.streams[stream].first
        self.code = simulation.rows.code
        self.described = simulation.arena.rows("levels")
        self.all_rows = launched.levels
        self.rows = self.all_rows[level]
        self.fixed = self.rows.fixed
        self.units, self.places = self.rows.of_stream(stream)
        """Rows, counted from the first of the level; of a level without slots also the instances' numbers."""
        if self.fixed:
            self._leave_out(self.first)

    @classmethod
    def to(cls, simulation: Simulation, g: int) -> StreamPeers:
        """Those with the stream of an instance."""
        launched, level, _ = simulation.view(g)
        number, pc, frame = simulation.arena.rows("units")[
            g, [UnitRow.number, UnitRow.pc, UnitRow.frame]
        ].tolist()
        return cls(simulation, launched, level, int(launched.table.stream_of[level][number]), pc, frame)

    def _leave_out(self, first: int) -> None:
        """Leave out those that never come to the instruction: the branches around it say so."""
        for row in self.code[first : self.pc]:
            if row[Instruction.kind] == BRANCH:
                orelse = row[Branch.orelse]
                end = self.code[orelse - 1][Jump.target]
                taken, always = self.value(row[Branch.condition])
                if always and self.pc < end:
                    chosen = (taken != 0) == (self.pc < orelse)
                    self.units, self.places = self.units[chosen], self.places[chosen]

    def value(self, x: int) -> tuple[Array, bool]:
        return self.meanings[x].of_all(self.units, self.arena.rows("frames")[self.frame :])

    def seen(self, level: int, numbers: Array) -> tuple[Array, Array] | None:
        """Where they reach instances of a level (counted in the plan), and which of these there are; None
        where that is not the same all the time."""
        other = self.described[self.launched.first_level + level]
        if not other[LevelRow.fixed]:
            return None
        there = (numbers >= 0) & (numbers < other[LevelRow.count])
        place = self.all_rows[level].places[np.where(there, numbers, 0)]
        return self.as_seen(place, int(other[LevelRow.hardware])), there

    def as_seen(self, place: Array, count: int) -> Array:
        """Return some of ``count`` hardware units as these see them."""
        mine = int(self.described[self.launched.first_level + self.level, LevelRow.hardware])
        if count >= mine:
            return place if count == mine else place * mine // count
        return np.where(self.places * count // mine == place, self.places, place * (mine // count))


def is_own(region: list[int]) -> bool:
    """Whether a region is always the instance's own."""
    return region[RegionRow.owner] == NONE and region[RegionRow.piece] == NONE


class MachineQueries:
    """The answers of one simulation, by the engine's reasons to ask."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.arena = simulation, simulation.arena

    def answer(self, question: int, asked: list[int]) -> int:
        """Return what was asked for, and keep it and what others will ask at the same instruction."""
        found: int = getattr(self, _NAMES[question])(*asked)
        return found

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

    def _cache_figures(self, pc: int, count: int, rows: Array, values: Array) -> None:
        """The figures that some of the rows of a level always need at an instruction."""
        code = self.arena.rows("code")
        at = int(code[pc, Instruction.figures])
        if at == NONE:
            at = self.arena.extend("figures", count, NONE)
            self.arena.rows("code")[pc, Instruction.figures] = at
        self.arena.rows("figures")[at + rows] = values

    # queues

    def queue(self, channel: int, receiver: int, member: int, g: int, pc: int) -> int:
        launched = self.simulation.launch_of(g)
        plan, described = launched.plan, launched.plan.channels[channel]
        units = plan.instances(described.level)
        if not (0 <= receiver < units and 0 <= member < described.members):
            raise QueueMisuse(f"there is no queue {member} of channel '{described.name}' at unit {receiver}")
        if not 0 <= self._senders(launched.sources[channel], receiver, member) < units:
            raise QueueMisuse(f"queue {described.label(member)} of unit {receiver} is fed by nobody")
        level = launched.table.levels[plan.level(described.level).name]
        fixed = bool(self.arena.rows("levels")[launched.first_level + level, LevelRow.fixed])
        receivers, members = np.array([receiver]), np.array([member])
        if fixed and not described.installed:
            found = self._queues_at(pc, g, units, described.members)
            numbers = np.unique(np.append(found, receiver * described.members + member))
            there = self.arena.rows("launch_queues")[
                launched.first_queues[channel] + numbers, LaunchQueue.number
            ]
            receivers, members = np.divmod(numbers[there == NONE], described.members)
            senders = self._senders(launched.sources[channel], receivers, members)
            fed = (senders >= 0) & (senders < units)
            receivers, members = receivers[fed], members[fed]
        self._make_queues(launched, channel, level, receivers, members, fixed)
        place = launched.first_queues[channel] + receiver * described.members + member
        return self.arena.launch_queues[place].number

    @staticmethod
    def _senders(source: Any, receivers: Any, members: Any) -> Any:
        return np.broadcast_to(source({"unit": receivers, "member": members}), np.shape(receivers))

    def _queues_at(self, pc: int, g: int, units: int, members: int) -> Array:
        """The queues that an instruction of a stream means, for all its instances."""
        peers, code = StreamPeers.to(self.simulation, g), self.arena.rows("code")[pc].tolist()
        if not peers.fixed:
            return np.zeros(0, dtype=np.int64)
        if code[Instruction.kind] == SEND:
            receivers, _ = peers.value(code[Send.to])
            values, _ = peers.value(code[Send.member])
        elif code[Instruction.kind] == RECEIVE:
            receivers = peers.units // code[Receive.per]
            values, _ = peers.value(code[Receive.member])
        else:
            lists, at = self.arena.rows("lists"), code[ReceiveAny.members]
            taken = lists[at + 1 : at + 1 + lists[at]]
            receivers = np.repeat(peers.units // code[ReceiveAny.per], len(taken))
            values = np.tile(taken, len(peers.units))
        there = (receivers >= 0) & (receivers < units) & (values >= 0) & (values < members)
        found: Array = (receivers * members + values)[there]
        return found

    def _make_queues(
        self, launched: LaunchRows, channel: int, level: int, receivers: Array, members: Array, fixed: bool
    ) -> None:
        simulation, arena, plan = self.simulation, self.arena, launched.plan
        described, view = plan.channels[channel], launched.views[level]
        count, first = len(receivers), launched.first + launched.offsets[level]
        senders = self._senders(launched.sources[channel], receivers, members)
        credit = lane = np.zeros(count, dtype=np.int64)
        if fixed:
            peers = self._senders(launched.senders[channel], receivers, members)
            places = launched.places[launched.offsets[level] : launched.offsets[level + 1]]
            ends = (peers, receivers) if not plan.levels else (places[peers], places[receivers])
            seen = view.on_channel(described)
            credit = seen.messages_ps(ends[1], ends[0], seen.credit_bytes(described))
            lane = seen.virtual_channels(described.name, *ends)
        here = np.ones(count, dtype=bool) if plan.levels else launched.present[senders]
        there = np.ones(count, dtype=bool) if plan.levels else launched.present[receivers]
        key = None
        if described.installed and fixed:
            direction = described.names[members[0]] if described.names else int(members[0])
            place = int(ends[1][0]) if plan.levels else view.places[int(receivers[0])]
            key = (view.level.name, place, described.name, direction)
        if key is not None and key in simulation.lasting_queues:
            numbers = np.array([simulation.lasting_queues[key]])
        else:
            ring = arena.extend("slots", described.slots * count, st.UNKNOWN)
            numbers = np.arange(count) + arena.extend("queues", count, 0)
            rows = arena.rows("queues")[numbers[0] :][:count]
            rows[:, Queue.slots], rows[:, Queue.ring] = (
                described.slots,
                ring + described.slots * np.arange(count),
            )
            rows[:, Queue.credit_ps] = credit
            rows[
                :, [Queue.sender, Queue.receiver, Queue.data_waiter, Queue.credit_waiter, Queue.path_memory]
            ] = NONE
            who = zip(members.tolist(), receivers.tolist(), senders.tolist(), strict=True)
            simulation.labels += [(described, m, first + r, first + s) for m, r, s in who]
            if key is None:
                launched.own_queues += numbers.tolist()
            else:
                simulation.lasting_queues[key] = int(numbers[0])
        queue = arena.rows("queues")
        queue[numbers[here], Queue.sender] = first + senders[here]
        queue[numbers[here], Queue.engine_queue] = launched.table.message_queue(lane[here])
        queue[numbers[there], Queue.receiver] = first + receivers[there]
        queue[numbers[there], Queue.channel] = launched.channels + channel
        queue[numbers[there], Queue.member] = members[there]
        ended = zip(numbers.tolist(), receivers.tolist(), members.tolist(), strict=True)
        launched.queue_ends.update({q: (channel, r, m) for q, r, m in ended})
        rows = arena.rows("launch_queues")
        at = launched.first_queues[channel] + receivers * described.members + members
        rows[at, LaunchQueue.number] = numbers
        rows[at, LaunchQueue.fed_by] = np.where(here, first + senders, NONE)
        rows[at, LaunchQueue.sent] = 0

    # paths

    def path(self, mover: int, memories: int, source: int, target: int, g: int) -> int:
        if source == -2:
            return self._queue_path(mover, memories, g)
        peers = StreamPeers.to(self.simulation, g)
        view, table = peers.view, peers.launched.table
        names = table.memories[memories >> 24], table.memories[memories & ((1 << 24) - 1)]
        by = table.movers[mover // 2 // st.MOVERS]
        kept = (source, target) != (NONE, NONE) and self._paths_at(peers, mover, memories, names, by)
        here = int(self.arena.rows("units")[g, UnitRow.place])
        ends = [here if end == NONE else end for end in (source, target)]
        path = view.path(ends[0], names[0], ends[1], names[1], same=bool(mover & 1), caches=True, by=by)
        number = self.simulation.paths.number(path, view.fabric)
        return number if kept else self.cache_answer(st.ASK_PATH, mover, memories, source, target, number)

    def _paths_at(
        self, peers: StreamPeers, mover: int, memories: int, names: tuple[str, str], by: str
    ) -> bool:
        """Find the paths of a copy for all instances of a stream; False where that cannot be said."""
        known = peers.launched.ends
        ends = known[peers.pc] if peers.pc in known else self.copy_ends(peers)
        if ends is None or self.arena.rows("code")[peers.pc, Instruction.figures] != NONE:
            return False
        units, count = peers.units, len(peers.rows)
        (here, one), (there, other), possible, always = ends
        same = one == other
        if not possible.all():
            here, there, same, units = here[possible], there[possible], same[possible], units[possible]
        if not always and len(units) > MAX_GUESSED:
            return False
        numbers = self._numbers(peers.view, here, names, there, same, by)
        if always:
            self._cache_figures(peers.pc, count, units, numbers)
        else:
            self.cache_answers(st.ASK_PATH, (mover & -2) + same, memories, here, there, numbers)
        return True

    def copy_ends(self, peers: StreamPeers) -> tuple[Any, Any, Array, bool] | None:
        """Where all instances read and write at an instruction, and who has that (NONE: each its own); for
        which of them that is possible, and whether it is always so. None where it cannot be said."""
        rows, everyone = self.simulation.rows, np.ones(len(peers.units), dtype=bool)
        own = peers.places, np.full(len(peers.units), NONE)
        found, possible, always = [], everyone, True
        for region in rows.ends(peers.pc):
            row = None if region == NONE else rows.regions[region]
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
        """The same of a region of a spread tile; who has its block is told apart by where that is."""
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
        held = np.where(place == peers.places, NONE, place)
        return place, held, np.ones(len(place), dtype=bool), always

    def _end(self, peers: StreamPeers, row: list[int]) -> tuple[Array, Array, Array, bool] | None:
        """The same of a region that names its owner."""
        stored = self._stored(peers, row)
        if stored[Storage.owners] != NONE or not peers.fixed:
            return None
        owners, always = peers.value(row[RegionRow.owner])
        seen = peers.seen(stored[Storage.level], owners)
        if seen is None:
            return None
        per, level = stored[Storage.per], peers.launched.first_level + stored[Storage.level]
        mine = (peers.units // per == owners) if per else np.zeros(len(owners), dtype=bool)
        held = np.where(mine, NONE, (level << 40) + owners)
        return np.where(mine, peers.places, seen[0]), held, seen[1], always

    def _stored(self, peers: StreamPeers, row: list[int]) -> list[int]:
        """The row of the storage of a region, as the level of its unit sees it."""
        base = self.simulation.rows.tiles[row[RegionRow.tile]][TileRow.base]
        at = int(peers.described[peers.launched.first_level + peers.level, LevelRow.storages]) + base
        found: list[int] = self.arena.rows("storages")[at].tolist()
        return found

    def _numbers(
        self, view: Resources, here: Array, names: tuple[str, str], there: Array, same: Array, by: str
    ) -> Array:
        """The numbers of many paths."""
        options: list[Any] = [{"same": flag, "caches": True, "by": by} for flag in (False, True)]
        found = np.empty(len(here), dtype=np.int64)
        for flag, option in enumerate(options):
            chosen = np.flatnonzero(same == flag)
            if len(chosen):
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

    def _queue_path(self, queue: int, memory: int, g: int) -> int:
        """The paths of messages out of a memory: of all queues of the channel at once."""
        launched, arena = self.simulation.launch_of(g), self.arena
        channel = max(i for i, first in enumerate(launched.first_queues) if first <= queue)
        described = launched.plan.channels[channel]
        level = launched.table.levels[launched.plan.level(described.level).name]
        view, asked = launched.views[level], int(arena.rows("launch_queues")[queue, LaunchQueue.number])
        first = arena.rows("queues")[asked, Queue.path_memory] == NONE and not described.installed
        numbers = np.array([asked])
        if first:
            ends = launched.queue_ends
            numbers = np.array([q for q, end in ends.items() if end[0] == channel])
            numbers = numbers[arena.rows("queues")[numbers, Queue.path_memory] == NONE]
        found = np.array([launched.queue_ends[q] for q in numbers.tolist()])
        receivers, members = found[:, 1], found[:, 2]
        senders = self._senders(launched.senders[channel], receivers, members)
        if launched.plan.levels:
            places = launched.places[launched.offsets[level] :]
            senders, receivers = places[senders], places[receivers]
        names = launched.table.memories[memory], described.memory
        view = view.on_channel(described)
        paths = self.numbered(view, senders, names, receivers, {"chunk": described.chunk_bytes})
        if first:
            rows = arena.rows("queues")
            rows[numbers, Queue.path_memory], rows[numbers, Queue.path] = memory, paths
        else:
            self.cache_answer(st.ASK_PATH, queue, memory, -2, -2, int(paths[0]))
        return int(paths[numbers == asked][0])

    def route(self, channel: int, memory: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        described, name = launched.plan.channels[channel - launched.channels], launched.table.memories
        view = view.on_channel(described)
        path = view.path(source, name[memory >> 24], target, described.memory, described.chunk_bytes)
        number = self.simulation.paths.number(path, view.fabric)
        return self.cache_answer(st.ASK_ROUTE, channel, memory, source, target, number)

    def lane(self, channel: int, level: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        described = launched.plan.channels[channel - launched.channels]
        number = view.on_channel(described).virtual_channel(described.name, source, target)
        lane = int(launched.table.message_queue(number))
        return self.cache_answer(st.ASK_LANE, channel, level, source, target, lane)

    def credit(self, channel: int, level: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        travels = view.credit_ps(source, target, launched.plan.channels[channel - launched.channels])
        return self.cache_answer(st.ASK_CREDIT, channel, level, source, target, travels)

    # work, messages, rendezvous

    def busy(self, pc: int, flops: int, nbytes: int, who: int, g: int) -> int:
        _, _, view = self.simulation.view(g)
        statements, code = self.simulation.rows.statements, self.arena.rows("code")
        if code[pc, Instruction.kind] == START:
            head = view.head_ps(statements[pc], nbytes)
            return self.cache_answer(st.ASK_BUSY, pc, flops, nbytes, who, head)
        extents = self._extents(pc, g) if view.reads_extents(statements[pc]) else ()
        busy = view.compute_ps(statements[pc], flops, self._first(g), nbytes, extents)
        work = statements[pc].work
        if who != NONE or extents or constant(work.flops) is None or constant(work.bytes) is None:
            return self.cache_answer(st.ASK_BUSY, pc, flops, nbytes, who, busy)
        # What else the stream does on this engine will be asked next.
        end = pc + int(np.argmax(code[pc:, Instruction.kind] == END))
        for i in (np.flatnonzero(code[pc:end, Instruction.kind] == WORK) + pc).tolist():
            other, like = statements[i].work, statements[i].engine == statements[pc].engine
            each, like = constant(other.flops), like and not view.reads_extents(statements[i])
            if like and other.dtype == work.dtype and each is not None and constant(other.bytes) is not None:
                code[i, Work.busy] = view.compute_ps(statements[i], each, self._first(g))
        return busy

    def kernel(self, pc: int, number: int, _: int, __: int, g: int) -> int:
        """Which device the kernel of a library is on, and how many compute units it takes there: all units of
        the stream are told."""
        launched, level, view = self.simulation.view(g)
        plan, devices = launched.plan, view.hda.level("device").total
        taken = view.kernel_units(self.simulation.rows.statements[pc])
        if not taken or not (plan.levels or launched.beside):  # nobody is there from whom it takes any
            return self.cache_answer(st.ASK_KERNEL, pc, number, 0, 0, 0)
        describe_devices(self.arena, view.hda)
        places = launched.levels[level].places if plan.levels else view.spots
        found = places * devices // view.level.total * st.MAX_TAKEN + taken
        self.cache_answers(st.ASK_KERNEL, pc, np.arange(len(places)), 0, 0, found)
        return int(found[number])

    def _extents(self, pc: int, g: int) -> tuple[tuple[int, ...], ...]:
        """Return the extents of what a command of an instance reads, then of what it writes."""
        lists, regions = self.arena.rows("lists"), self.arena.rows("regions")
        frame, at = self.arena.rows("units")[g, UnitRow.frame], self.arena.rows("code")[pc, Work.regions]
        found = []
        for region in lists[at + 1 : at + 1 + lists[at]].tolist():
            dimensions, bounds = regions[region, [RegionRow.dimensions, RegionRow.bounds]].tolist()
            values = lists[bounds + 1 : bounds + 2 * dimensions : 2].tolist()
            found.append(tuple(int(plain.engine().evaluate(self.arena.memory, x, frame)) for x in values))
        return tuple(found)

    def _first(self, g: int) -> int:
        """The unit of the first level that an instance is or belongs to."""
        launched, units = self.simulation.launch_of(g), self.arena.rows("units")
        while g != NONE and units[g, UnitRow.level] != launched.first_level:
            g = int(units[g, UnitRow.parent])
        return int(units[g, UnitRow.number]) if g != NONE else NONE

    def rendezvous(self, pc: int, rendezvous: int, nbytes: int, here: int, g: int) -> int:
        launched, level, view = self.simulation.view(g)
        members = launched.table.members[rendezvous - launched.rendezvous]
        statement = self.simulation.rows.statements[pc]
        if statement.kind == "broadcast" and symbols(statement.root) <= {"unit"}:
            number = int(self.arena.rows("units")[g, UnitRow.number])
            root = int(statement.root.evaluate({"unit": number}))
            if not 0 <= root < len(members):
                raise QueueMisuse(f"broadcast takes root {root} of a group of {len(members)}")
        if launched.plan.levels:
            row = launched.first_level + level
            if self.arena.rows("levels")[row, LevelRow.fixed]:
                places = launched.places[launched.offsets[level] :]
                members = tuple(places[list(members)].tolist())
            else:
                members = tuple(int(plain.engine().where(self.arena.memory, g, row, m)) for m in members)
        delay = view.collective_ps(statement, members, nbytes)
        return self.cache_answer(st.ASK_RENDEZVOUS, pc, rendezvous, nbytes, here, delay)

    def message(self, level: int, source: int, target: int, _: int, g: int) -> int:
        peers, code = StreamPeers.to(self.simulation, g), self.arena.rows("code")
        row, view = code[peers.pc].tolist(), peers.view
        if row[Instruction.figures] == NONE and peers.fixed:
            flag = self.arena.rows("flags")[peers.launched.flags + row[Signal.flag]].tolist()
            numbers, always = peers.value(row[Signal.to])
            seen = peers.seen(flag[FlagRow.level] - peers.launched.first_level, numbers)
            chosen = np.flatnonzero(seen[1]) if seen is not None else np.zeros(0, dtype=np.int64)
            if seen is not None and (always or len(chosen) <= MAX_GUESSED):
                here, there = peers.places[chosen], seen[0][chosen]
                delays = view.messages_ps(here, there)
                if always:
                    self._cache_figures(peers.pc, len(peers.rows), peers.units[chosen], delays)
                else:
                    self.cache_answers(st.ASK_MESSAGE, level, here, there, 0, delays)
                return view.signal_ps(source, target)
        return self.cache_answer(st.ASK_MESSAGE, level, source, target, 0, view.signal_ps(source, target))

    def value(self, pc: int, actor: int, count: int, _: int, g: int) -> int:
        launched = self.simulation.launch_of(g)
        statement, scalars = self.simulation.rows.statements[pc], launched.scalars
        level, number = launched.which(actor)
        total = launched.offsets[level + 1] - launched.offsets[level]
        if not (isinstance(scalars, Assumed) and scalars.has(statement.name, total)):
            value = scalars(statement, launched.chooser(actor), count)
            return self.cache_answer(st.ASK_VALUE, pc, actor, count, 0, int(value))
        first = number // ASKED_AT_ONCE * ASKED_AT_ONCE
        numbers = np.arange(first, min(first + ASKED_AT_ONCE, total))
        values = np.broadcast_to(scalars(statement, numbers, count), numbers.shape)
        self.cache_answers(st.ASK_VALUE, pc, actor - number + numbers, count, 0, values)
        return int(values[number - first])

    def delay(self, flow: int, number: int, path: int, nbytes: int, duration: int) -> int:
        launched = next(x for x in self.simulation.launches if flow in x.flows)
        faults = launched.resources.faults
        delay = faults.delay_ps(flow - launched.flows.start, number, duration)
        return self.cache_answer(st.ASK_DELAY, flow, number, path, nbytes, delay)

    def misuse(self, pc: int, g: int, what: int, a: int, b: int) -> int:
        statement = self.simulation.rows.statements[pc]
        channel = f"channel '{getattr(statement, 'channel', '')}'"
        texts = {
            st.WRONG_SENDER: f"a queue of {channel} is fed by the wrong unit",
            st.TOO_LARGE: f"a message of {a} bytes does not fit a slot of {channel}",
            st.WRONG_SIZE: f"{channel} has messages of other sizes than those that are received",
            st.NO_FLAG: f"there is no flag {b} at unit {a}",
            st.NO_PART: "a unit meets at a collective in which it has no part",
        }
        if what == st.TOO_FAR_AHEAD:
            name = self.simulation.name(int(self.arena.rows("units")[g, UnitRow.actor]))
            raise TimingError(
                f"an engine of {name} falls behind a loop by {a:,} commands: too many to be simulated",
                place=statement.source,
                advice="let a round use what the engine did some rounds before, or take fewer rounds",
            )
        if what == st.NO_OWNER:
            name = self.simulation.launch_of(g).table.storage_name(b)[1]
            raise QueueMisuse(f"tile '{name}' has no owner {a}")
        raise QueueMisuse(texts[what])


_NAMES = {
    st.ASK_QUEUE: "queue", st.ASK_PATH: "path", st.ASK_BUSY: "busy", st.ASK_RENDEZVOUS: "rendezvous",
    st.ASK_MESSAGE: "message", st.ASK_VALUE: "value", st.ASK_DELAY: "delay", st.ASK_ROUTE: "route",
    st.ASK_LANE: "lane", st.ASK_CREDIT: "credit", st.ASK_KERNEL: "kernel", st.MISUSE: "misuse",
}  # fmt: skip
