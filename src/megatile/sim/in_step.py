"""All units in step: where they do the same things with other sizes and are never in each other's way, the
times of all of them are found together, one instruction after another.

The condition is that one stream covers all units and none of its trip counts, conditions and members names
the unit; that the units send to each other in pairs that stay the same; and that no link, memory or engine of
theirs is used by two of them. Then every time is a sum or the latest of times of earlier instructions, so
that the instructions of the table are run once, with arrays that have an element for every unit. Whatever
needs more (a message that comes later in the stream, messages of other sizes than those received, …) is left
to the engine: `NotInStep`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from time import monotonic
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.statements import regions_of
from megatile.sim import plain, state as st
from megatile.sim.answers import Answers
from megatile.sim.data import Assumed
from megatile.sim.expressions import Values
from megatile.sim.instructions import (
    AGAIN,
    BRANCH,
    COPY,
    END,
    ENTER,
    FREE,
    JUMP,
    MERGE,
    RECEIVE,
    SEND,
    TEST,
    WORK,
    Branch,
    Copy,
    Free,
    Instruction,
    Jump,
    LoopAgain,
    LoopEnter,
    LoopTest,
    Merge,
    Receive,
    Send,
    Work,
)
from megatile.sim.simulation import Simulation
from megatile.sim.state import NONE, EngineQueue, PathRow, Storage
from megatile.sim.table import DMA
from megatile.timing.resources import Resources

LEAST = 512
"""Units from which on an instruction for all of them is faster than one for each."""
WIDEST = 1 << 16
"""Between the smallest and the largest size whose times are looked up in a list."""
BETWEEN_LOOKS = 64
Array = Any


class NotInStep(Exception):
    """The engine has to do it."""


def may_be_in_step(plan: pm.Plan, resources: Resources) -> bool:
    """Whether a plan says nothing against it."""
    if plan.units < LEAST or plan.levels or len(plan.streams) != 1 or resources.faults:
        return False
    if plan.streams[0].unit_count() != plan.units or any(c.installed for c in plan.channels):
        return False
    if any(t.shared or t.offset is not None for t in plan.tiles):
        return False
    allowed = (pm.Compute, pm.Send, pm.Receive, pm.Free, pm.Loop, pm.If)
    return all(
        isinstance(s, allowed) and not any(r.at is not None for r in regions_of(s))
        for s in pm.statements(plan.streams[0].body)
    )


class _Queue:
    """The queues of one channel and member: from every unit one message at a time."""

    def __init__(self, to: Array, slots: int, most: int, memory: str, chunk: int | None) -> None:
        self.to, self.slots, self.most, self.memory, self.chunk = to, slots, most, memory, chunk
        self.source = np.argsort(to)
        self.sent = self.taken = 0
        self.arrivals: dict[int, tuple[Any, Any]] = {}
        """By message: when it is there, and its size, for every receiver."""
        self.credits: dict[int, Any] = {}
        """By message: when its slot is free again, as every sender sees it."""
        self.credit: Any = 0
        self.lane = DMA
        self.paths: dict[int, list[tuple[int, Any]]] = {}
        """By memory that messages come from: the classes of paths, and the senders that have each."""


class InStep:
    """A launch whose units go in step; `run` takes it to its end."""

    def __init__(self, resources: Resources, begin: int, contended: bool = True) -> None:
        # Not run; it knows the rows of the plan and the paths, and which of those are shared.
        self.simulation = simulation = Simulation(record=0, engine="plain", contended=contended)
        self.launched = launched = simulation.add(resources.plan, resources, Assumed(None), begin=begin)
        arena, table = simulation.arena, launched.table
        self.view = launched.views[0]
        stream, self.rows = table.streams[0], simulation.rows
        if (arena.rows("engine_queues")[: arena.used["engine_queues"], EngineQueue.server] != NONE).any():
            raise NotInStep  # an engine that several units share
        self.units = np.arange(launched.plan.units)
        self.values = Values(self.rows.meanings, [self.units, *stream.frame[1:]])
        self.frame = self.values.frame
        self.pc = stream.first
        self.now: Any = np.full(len(self.units), begin)
        self.last = begin
        self.tails: dict[int, Any] = {}
        """By engine, when it is free."""
        self.logs: dict[int, list[tuple[Any, Any, bool]]] = {}
        """By storage: accesses that may not have ended (where, until when, whether it is written)."""
        self.queues: dict[tuple[int, int], _Queue] = {}
        self.held: dict[int, list[Any]] = {}
        """By slot: how many names it has, and the queue and number of its message."""
        self._times: dict[Any, tuple[int, Any]] = {}
        self._do: dict[int, Callable[[Any], int | None]] = {
            ENTER: self._enter, TEST: self._test, AGAIN: self._again, BRANCH: self._branch,
            JUMP: lambda row: row[Jump.target], MERGE: self._merge, FREE: self._free,
            WORK: self._work, COPY: self._copy, SEND: self._send, RECEIVE: self._receive,
        }  # fmt: skip

    def run(self, deadline: float | None = None) -> bool:
        """Go on to the end; False where the time is over before."""
        code, left = self.rows.code, BETWEEN_LOOKS
        while code[self.pc][Instruction.kind] != END:
            row = code[self.pc]
            after = self._do[row[Instruction.kind]](row)
            self.pc = self.pc + 1 if after is None else after
            left -= 1
            if not left:
                if deadline is not None and monotonic() > deadline:
                    return False
                left = BETWEEN_LOOKS
        # All messages have been received, and work on an engine ends with it.
        self.last = max(self.last, *(int(times.max()) for times in (self.now, *self.tails.values())))
        if any(queue.sent != queue.taken for queue in self.queues.values()):
            raise NotInStep
        return True

    @cached_property
    def messages(self) -> dict[str, dict[int, int]]:
        """Per channel, how many messages were sent to each queue."""
        found: dict[str, dict[int, int]] = {c.name: {} for c in self.launched.plan.channels}
        for (channel, member), queue in self.queues.items():
            described = self.launched.plan.channels[channel]
            for unit in range(len(self.units)) if queue.sent else ():
                found[described.name][unit * described.members + member] = queue.sent
        return found

    # control flow

    def _number(self, x: int) -> int:
        """The value of an expression that is the same for all units."""
        found = self.values.value(x)
        if isinstance(found, np.ndarray):
            raise NotInStep
        return int(found)

    def _list(self, at: int) -> list[int]:
        return list(self.rows.lists[at + 1 : at + 1 + self.rows.lists[at]])

    def _enter(self, row: list[int]) -> None:
        self._bind_all(row[LoopEnter.bindings], row[LoopEnter.integers])
        index, bounds = (
            row[LoopEnter.index],
            [self._number(row[x]) for x in (LoopEnter.start, LoopEnter.stop, LoopEnter.step)],
        )
        for place, value in zip((index, index + 1, index + 2), bounds, strict=True):
            self.values.put(place, value)
        self._end_names(row[LoopEnter.ended])

    def _test(self, row: list[int]) -> int | None:
        at, stop, step = self.frame[row[LoopTest.index] : row[LoopTest.index] + 3]
        return None if (at < stop if step > 0 else at > stop) else row[LoopTest.exit]

    def _again(self, row: list[int]) -> int:
        self._bind_all(row[LoopAgain.bindings], row[LoopAgain.integers])
        self._end_names(row[LoopAgain.ended])
        index = row[LoopAgain.index]
        self.values.put(index, self.frame[index] + self.frame[index + 2])
        return row[LoopAgain.test]

    def _branch(self, row: list[int]) -> int | None:
        return None if self._number(row[Branch.condition]) else row[Branch.orelse]

    def _merge(self, row: list[int]) -> None:
        self._bind_all(row[Merge.bindings], row[Merge.integers])
        self._end_names(row[Merge.ended])

    def _free(self, row: list[int]) -> None:
        self._end_names(row[Free.ended])

    # names of messages: all units have the same message in the same slot

    def _bind_all(self, moves: int, integers: int) -> None:
        lists = self.rows.lists
        at = [moves + 1 + 3 * i for i in range(lists[moves])]
        meant = [self._meaning(lists[i + 1], lists[i + 2]) for i in at]
        found = [
            (lists[integers + 1 + 2 * i], self.values.value(lists[integers + 2 + 2 * i]))
            for i in range(lists[integers])
        ]
        for storage in meant:
            if storage in self.held:
                self.held[storage][0] += 1
        for place, value in found:
            self.values.put(place, value)
        for i, storage in zip(at, meant, strict=True):
            self._bind(lists[i], storage)

    def _end_names(self, names: int) -> None:
        for place in self._list(names):
            self._bind(place, NONE)

    def _bind(self, place: int, storage: int) -> None:
        old, self.frame[place] = self.frame[place], storage
        if old not in self.held:
            return
        self.held[old][0] -= 1
        if not self.held[old][0]:
            _, queue, number = self.held.pop(old)
            free = self.now
            for _, end, _ in self.logs.pop(old, ()):
                free = np.maximum(free, end)
            self._give_back(queue, number, free)

    def _give_back(self, queue: _Queue, number: int, free: Array) -> None:
        queue.credits[number] = free[queue.to] + queue.credit

    def _meaning(self, mode: int, what: int) -> int:
        if mode == st.HANDLE:
            return int(self.frame[what])
        base, versions, slot = self.rows.tiles[what]
        return base if slot == NONE else base + self.frame[slot] % versions

    # accesses

    def _look(self, region: int) -> tuple[int, Any, bool]:
        """Storage, bounds and whether it can conflict."""
        mode, what, dimensions, at, *_, tracked, _ = self.rows.regions[region]
        bounds = [self.values.value(x) for x in self.rows.lists[at : at + 2 * dimensions]]
        if tracked:
            for extent in bounds[1::2]:
                least = self.values.between(extent)[0] if isinstance(extent, np.ndarray) else extent
                if least <= 0:
                    raise NotInStep  # blocks of nothing conflict with nothing
        return self._meaning(mode, what), bounds, bool(tracked)

    def _free_at(self, ready: Array, access: tuple[int, Any, bool], write: bool) -> Array:
        """When the unfinished accesses are over that an access conflicts with."""
        storage, bounds, tracked = access
        if not tracked or storage not in self.logs:
            return ready
        kept = []
        for entry in self.logs[storage]:
            there, end, written = entry
            late = end > self.now
            if not late.any():
                continue
            kept.append(entry)
            if not (write or written):
                continue
            if not bounds or not there or all(a is b for a, b in zip(bounds, there, strict=True)):
                ready = np.maximum(ready, end)
                if write and (not bounds or there):
                    kept.pop()  # whoever conflicts with that will conflict with this, which ends later
                continue
            for i in range(0, len(bounds), 2):
                late = late & (bounds[i] < there[i] + there[i + 1]) & (there[i] < bounds[i] + bounds[i + 1])
            ready = np.maximum(ready, late * end)
        self.logs[storage] = kept
        return ready

    def _log(self, access: tuple[int, Any, bool], end: Array, write: bool) -> None:
        if access[2]:
            self.logs.setdefault(access[0], []).append((access[1], end, write))

    # commands

    def _figures(self, key: Any, size: Any, ask: Callable[[int], int]) -> Any:
        """What a function gives for one size or for many, asked once for each size."""
        if not isinstance(size, np.ndarray):
            low = high = size
        else:
            low, high = self.values.between(size)
        base, known = self._times.get(key, (low, np.full(1, NONE)))
        if low < base or high >= base + len(known):
            first, last = min(low, base), max(high + 1, base + len(known))
            if last - first > WIDEST:
                raise NotInStep
            wider = np.full(last - first, NONE)
            wider[base - first : base - first + len(known)] = known
            base, known = self._times[key] = first, wider
        found = known[low - base] if low == high else known[size - base]
        if found.min() == NONE:
            for each in np.unique(size).tolist():
                known[each - base] = ask(each)
            self._times[key] = base, known
            found = known[low - base] if low == high else known[size - base]
        return found

    def _work(self, row: list[int]) -> None:
        regions = self._list(row[Work.regions])
        reads = [self._look(r) for r in regions[:-1]]
        if row[Work.version] != NONE:
            self.values.put(row[Work.version], self.frame[row[Work.version]] + 1)
        write = self._look(regions[-1])
        statement, pc = self.rows.statements[self.pc], self.pc
        busy = self._figures(
            (pc,), self.values.value(row[Work.flops]), lambda flops: self.view.compute_ps(statement, flops, 0)
        )
        ready = np.maximum(self.now, self.tails.get(row[Work.engine], 0))
        for access in reads:
            ready = self._free_at(ready, access, False)
        end = self.tails[row[Work.engine]] = self._free_at(ready, write, True) + busy
        for access in reads:
            self._log(access, end, False)
        self._log(write, end, True)

    def _moved(
        self, lane: int, ready: Array, nbytes: Any, paths: list[tuple[int, Any]]
    ) -> tuple[Array, Array]:
        """When the source of a transfer is free and when it has arrived, along the path of every unit."""
        ready = np.maximum(ready, self.tails.get(lane, 0))
        left, end = ready, ready
        for number, those in paths:
            p = number & st.CLASS
            row = self.simulation.arena.rows("paths")[p]
            size = nbytes if len(paths) == 1 or not isinstance(nbytes, np.ndarray) else nbytes[those]
            memory = self.simulation.arena.memory
            held = self._figures(("held", p), size, partial(plain.engine().held_until, memory, p))
            drawn = self._figures(("drawn", p), size, partial(plain.engine().drawn_out, memory, p))
            head, latency = int(row[PathRow.startup]), int(row[PathRow.latency])
            if len(paths) == 1:
                left, end = ready + (held + head), ready + (drawn + (head + latency))
            else:
                if left is ready:
                    left, end = ready.copy(), ready.copy()
                left[those] += held + head
                end[those] += drawn + (head + latency)
        self.tails[lane] = left
        return left, end

    def _paths(self, numbers: Any) -> list[tuple[int, Any]]:
        """The classes of paths on which nothing is in the way, and who has each."""
        classes = np.asarray(numbers) & st.CLASS
        rows = self.simulation.arena.rows("paths")[np.unique(classes)]
        if (
            rows[:, PathRow.contended].any()
            or (rows[:, [PathRow.read_cache, PathRow.write_cache]] != NONE).any()
        ):
            raise NotInStep
        return [(int(c), np.flatnonzero(classes == c)) for c in np.unique(classes)]

    def _memory(self, storage: int) -> tuple[int, bool]:
        """The memory of a storage, and whether every unit has one of its own."""
        table = self.launched.table
        row = self.simulation.arena.rows("storages")[table.memory_base + storage]
        return int(row[Storage.memory]), bool(row[Storage.private])

    def _local(self, source: int, target: int, by: str) -> list[tuple[int, Any]]:
        """The path of a copy between memories that every unit has for itself."""
        (one, mine), (other, own) = self._memory(source), self._memory(target)
        if not (mine and own):
            raise NotInStep
        names, view = self.launched.table.memories, self.view
        path = view.path(0, names[one], 0, names[other], same=True, caches=True, by=by)
        return self._paths([self.simulation.paths.number(path, view.fabric)])

    def _copy(self, row: list[int]) -> None:
        regions = self._list(row[Copy.regions])
        reads = [self._look(r) for r in regions[:-1]]
        if row[Copy.version] != NONE:
            self.values.put(row[Copy.version], self.frame[row[Copy.version]] + 1)
        write = self._look(regions[-1])
        ready = self.now
        for access in reads:
            ready = self._free_at(ready, access, False)
        ready = self._free_at(ready, write, True)
        paths = self._local(reads[0][0], write[0], self.launched.table.movers[row[Copy.mover]])
        _, end = self._moved(row[Copy.engine], ready, self.values.value(row[Copy.nbytes]), paths)
        for access in reads:
            self._log(access, end, False)
        self._log(write, end, True)
        self.last = max(self.last, int(end.max()))

    def _queue(self, row: list[int], member: int) -> _Queue:
        """The queues that an instruction sends to, which must be one for every unit."""
        channel, to = row[Send.channel], self.values.value(row[Send.to])
        if set(self.rows.meanings[row[Send.to]].places.values()) != {0}:
            raise NotInStep
        queue = self.queues.get((channel, member))
        if queue is None:
            described = self.launched.plan.channels[channel]
            if not 0 <= member < described.members or (np.sort(to) != self.units).any():
                raise NotInStep
            source = described.source.evaluate({"unit": to, "member": np.full(len(to), member)})
            lanes = self.view.virtual_channels(described.name, self.units, to)
            if (source != self.units).any() or (lanes != lanes[0]).any():
                raise NotInStep
            queue = _Queue(to, described.slots, described.slot_bytes, described.memory, described.chunk_bytes)
            queue.credit = self.view.messages_ps(to, self.units, self.view.credit_bytes(described))
            queue.lane = self.launched.table.message_queue(int(lanes[0]))
            self.queues[channel, member] = queue
        elif queue.to is not to and (queue.to != to).any():
            raise NotInStep
        return queue

    def _send(self, row: list[int]) -> None:
        queue = self._queue(row, self._number(row[Send.member]))
        number, nbytes = queue.sent, self.values.value(row[Send.nbytes])
        if (self.values.between(nbytes)[1] if isinstance(nbytes, np.ndarray) else nbytes) > queue.most:
            raise NotInStep
        if number >= queue.slots:
            if number - queue.slots not in queue.credits:
                raise NotInStep
            self.now = np.maximum(self.now, queue.credits.pop(number - queue.slots))
        read = self._look(row[Send.region])
        memory, _ = self._memory(read[0])
        if memory not in queue.paths:
            names = self.launched.table.memories[memory], queue.memory
            answers, option = Answers(self.simulation), {"chunk": queue.chunk}
            queue.paths[memory] = self._paths(
                answers.numbered(self.view, self.units, names, queue.to, option)
            )
        ready = self._free_at(self.now, read, False)
        left, end = self._moved(queue.lane, ready, nbytes, queue.paths[memory])
        self._log(read, left, False)
        size = nbytes[queue.source] if isinstance(nbytes, np.ndarray) else nbytes
        queue.arrivals[number] = end[queue.source], size
        queue.sent += 1

    def _receive(self, row: list[int]) -> None:
        member = self._number(row[Receive.member])
        queue = self.queues.get((row[Receive.channel], member))
        if queue is None or queue.taken not in queue.arrivals:
            raise NotInStep  # it is sent later in the stream
        number = queue.taken
        arrival, size = queue.arrivals.pop(number)
        if np.any(size != self.values.value(row[Receive.nbytes])):
            raise NotInStep
        queue.taken += 1
        described = self.launched.plan.channels[row[Receive.channel]]
        base = self.launched.table.slot_base[row[Receive.channel]]
        storage = base + member * described.slots + number % queue.slots
        if row[Receive.into] == NONE:
            self.now = np.maximum(self.now, arrival)
            self.held[storage] = [1, queue, number]
            self._bind(row[Receive.handle], storage)
            return
        if row[Receive.version] != NONE:
            self.values.put(row[Receive.version], self.frame[row[Receive.version]] + 1)
        write = self._look(row[Receive.into])
        self.now = np.maximum(self.now, arrival)
        ready = self._free_at(self.now, write, True)
        _, end = self._moved(
            DMA, ready, self.values.value(row[Receive.nbytes]), self._local(storage, write[0], "")
        )
        self._log(write, end, True)
        self.last = max(self.last, int(end.max()))
        self._give_back(queue, number, end)
