"""What the engine asks about queues: their rows, the paths of their messages, and how long credits travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from megatile.plan.cohort import spread
from megatile.sim import state as st
from megatile.sim.instructions import RECEIVE, SEND, InstructionRow, ReceiveAnyRow, ReceiveRow, SendRow
from megatile.sim.path_queries import PathQueries
from megatile.sim.state import NONE, LaunchQueue, LevelRow, Queue
from megatile.sim.stream_peers import Array, StreamPeers

if TYPE_CHECKING:
    from megatile.sim.launch_rows import LaunchRows


class QueueMisuse(Exception):
    """Something about queues, flags or groups that no plan may do. ``launch`` is the number of who did."""

    launch = NONE


class QueueQueries(PathQueries):
    """Queues that are set up when they are first used; where both ends are there from the beginning, all that
    the instruction may mean at once."""

    def queue(self, channel: int, receiver: int, member: int, g: int, pc: int) -> int:
        launched = self.simulation.launch_of(g)
        plan, described = launched.plan, launched.plan.channels[channel]
        units = plan.instances(described.level)
        if not (0 <= receiver < units and 0 <= member < described.members):
            raise QueueMisuse(f"there is no queue {member} of channel '{described.name}' at unit {receiver}")
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
        if not fed[(receivers == receiver) & (members == member)].all():
            raise QueueMisuse(f"queue {described.label(member)} of unit {receiver} is fed by nobody")
        self._make_queues(launched, channel, level, receivers[fed], members[fed], senders[fed], fixed)
        place = launched.first_queues[channel] + receiver * described.members + member
        return self.arena.launch_queues[place].number

    @staticmethod
    def _senders(source: Any, receivers: Any, members: Any) -> Any:
        return spread(source({"unit": receivers, "member": members}), len(receivers))

    def _queues_at(self, pc: int, g: int, units: int, members: int) -> Array:
        """Return the queues that an instruction of a stream means, for all its instances."""
        peers, code = StreamPeers.to(self.simulation, g), self.arena.rows("code")[pc].tolist()
        if not peers.fixed:
            return np.zeros(0, dtype=np.int64)
        if code[InstructionRow.kind] == SEND:
            receivers, _ = peers.value(code[SendRow.to])
            values, _ = peers.value(code[SendRow.member])
        elif code[InstructionRow.kind] == RECEIVE:
            receivers = peers.units // code[ReceiveRow.per]
            values, _ = peers.value(code[ReceiveRow.member])
        else:
            lists, at = self.arena.rows("lists"), code[ReceiveAnyRow.members]
            taken = lists[at + 1 : at + 1 + lists[at]]
            receivers = np.repeat(peers.units // code[ReceiveAnyRow.per], len(taken))
            values = np.tile(taken, len(peers.units))
        there = (receivers >= 0) & (receivers < units) & (values >= 0) & (values < members)
        return (receivers * members + values)[there]

    def _make_queues(
        self, launched: LaunchRows, channel: int, level: int, receivers: Array, members: Array,
        senders: Array, fixed: bool,
    ) -> None:  # fmt: skip
        simulation, arena, plan = self.simulation, self.arena, launched.plan
        described, view = plan.channels[channel], launched.views[level]
        count, first = len(receivers), launched.first + launched.offsets[level]
        credit_ps = virtual = np.zeros(count, dtype=np.int64)
        if fixed:
            peers = senders
            if launched.senders is not launched.sources:
                peers = self._senders(launched.senders[channel], receivers, members)
            places = launched.places[launched.offsets[level] : launched.offsets[level + 1]]
            ends = (peers, receivers) if not plan.levels else (places[peers], places[receivers])
            seen = view.on_channel(described)
            credit_ps = seen.messages_ps(ends[1], ends[0], seen.credit_bytes(described))
            virtual = seen.virtual_channels(described.name, *ends)
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
            rows[:, Queue.credit_ps] = credit_ps
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
        queue[numbers[here], Queue.engine_queue] = launched.table.engine_queue_of_messages(virtual[here])
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

    def queue_path(self, queue: int, memory: int, _: int, __: int, g: int) -> int:
        """Return the paths of messages out of a memory: of all queues of the channel at once."""
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
            self.cache_answer(st.ASK_QUEUE_PATH, queue, memory, 0, 0, int(paths[0]))
        return int(paths[numbers == asked][0])

    def route(self, channel: int, memory: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        described, name = launched.plan.channels[channel - launched.channels], launched.table.memories
        view = view.on_channel(described)
        path = view.path(source, name[memory >> 24], target, described.memory, described.chunk_bytes)
        number = self.simulation.paths.number(path, view.fabric)
        return self.cache_answer(st.ASK_ROUTE, channel, memory, source, target, number)

    def engine_queue(self, channel: int, level: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        described = launched.plan.channels[channel - launched.channels]
        number = view.on_channel(described).virtual_channel(described.name, source, target)
        engine = int(launched.table.engine_queue_of_messages(number))
        return self.cache_answer(st.ASK_ENGINE_QUEUE, channel, level, source, target, engine)

    def credit(self, channel: int, level: int, source: int, target: int, g: int) -> int:
        launched, _, view = self.simulation.view(g)
        travels = view.credit_ps(source, target, launched.plan.channels[channel - launched.channels])
        return self.cache_answer(st.ASK_CREDIT, channel, level, source, target, travels)
