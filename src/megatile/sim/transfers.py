"""Transfers through shared resources: one entry in the time queue when a head reaches such a resource."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from megatile.sim.pending import Pending
from megatile.sim.program import Program
from megatile.sim.unit import UnitState
from megatile.timing.fabric import MAX_PIECES, Path

PIECES = 2 * MAX_PIECES
"""Message numbers are spread by this, so that the pieces of a message have numbers of their own."""
DECISION, REQUEST = 0, 1
"""Phases: at one time, deliveries and decisions come before requests for resources."""


class Servers:
    """Resources as FIFO servers; a wide one serves several at a time."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths
        self.free: dict[int, int] = defaultdict(int)
        self._wide: dict[int, list[int]] = {}

    def serve(self, resource: int, head_ps: int, busy_ps: int) -> int:
        """The time at which a request gets its turn."""
        width = self.widths[resource]
        if width == 1:
            turn = self.free[resource]
            if turn < head_ps:
                turn = head_ps
            self.free[resource] = turn + busy_ps
            return turn
        lanes = self._wide.setdefault(resource, [0] * width)
        turn = max(head_ps, lanes[0])
        heapq.heapreplace(lanes, turn + busy_ps)
        return turn


class OnlyStage(NamedTuple):
    """What a transfer needs whose way has one stage where it can be in others' way."""

    lead_ps: int
    """From the start of the transfer to its head being at this stage."""
    place: int
    """Which stage of the way it is."""
    resource: int
    busy_ps: int
    ahead_ps: int
    """From the head being there to the tail, where the stages before decide."""
    behind_ps: int
    """From the turn to the tail, where this stage or a later one decides."""
    later_ps: int
    """Latency from this stage on."""
    held_ps: int
    """From the turn to the source being free."""


def only_stage(program: Program, path: Path, size: int) -> OnlyStage | None:
    """The only stage of a way that has a resource, if that is shared."""
    used = [stage.resource for stage in path.stages if stage.resource is not None]
    index = path.first_resource
    if len(used) != 1 or index is None or not program.is_shared(used[0]):
        return None
    dma, busy = path.stage_ps(size)
    later = sum(stage.latency_ps for stage in path.stages[index:]) + path.extra_ps
    ahead = max(dma, *busy[:index], 0)
    # Stages after the turn take the bytes at their own speed, from the moment the head reaches them.
    behind = max(busy[index], *busy[index + 1 :], 0)
    held = path.held_ps(size) - path.before_ps
    lead = path.startup_ps + path.before_ps
    return OnlyStage(lead, index, used[0], busy[index], ahead, behind, later, held)


class Transfers:
    """Moves transfers along their stages; whoever starts one is called back with its times."""

    def __init__(self, program: Program, queue: list[tuple[Any, ...]]) -> None:
        self._program = program
        self.queue = queue
        self._written = program.regions.written
        self.shared = program.shared
        self.everything = program.everything_shared
        self.last_ps = 0
        self._only: dict[tuple[int, int], tuple[Path, Any]] = {}
        self.servers = Servers(program.machine.fabric.widths)

    def only_stage(self, path: Path, size: int) -> OnlyStage | None:
        """The only shared stage of a way, worked out once per size; None for other ways."""
        key = (id(path), size)
        known = self._only.get(key)
        if known is None:
            known = self._only[key] = (path, only_stage(self._program, path, size))
        return known[1]

    def load(self, unit: UnitState, now: int) -> None:
        """The turn of a unit that stands still at a LOAD: all its times follow from that."""
        _, (engine, _, _, _, only), _, reads, writes, _ = unit.operations[unit.pc]
        _, _, resource, busy, ahead, behind, later, held = only
        turn = self.servers.serve(resource, now, busy)
        unit.free[engine] = turn + held
        tail = turn + behind
        if tail < now + ahead:
            tail = now + ahead
        tail += later
        if tail > self.last_ps:
            self.last_ps = tail
        readers, writers, written = unit.readers, unit.writers, self._written
        for block in reads:
            # Who reads what nobody writes need not be remembered.
            if written[block] and readers[block] < tail:
                readers[block] = tail
        for block in writes:
            writers[block] = tail
        unit.pc += 1

    def request(
        self, time: int, key: tuple[int, int, int], resource: int, busy_ps: int, then: Callable[[int], None]
    ) -> None:
        """Ask for a resource; ``then`` gets the time of the turn. ``key`` is (flow, number, hop)."""
        heapq.heappush(
            self.queue,
            (time, REQUEST, *key, lambda now: then(self.servers.serve(resource, now, busy_ps))),
        )

    def start(
        self,
        start: int,
        path: Path,
        nbytes: int,
        flow: int,
        number: int,
        delay_ps: int,
        left: Callable[[int], None],
        arrived: Callable[[int], None],
    ) -> None:
        """Send ``nbytes`` from ``start`` on; both callbacks come as soon as their time is known.

        ``left`` gets the time at which the source is free again, ``arrived`` that of the tail's arrival.
        """
        pieces = path.pieces(nbytes) if self._program.contended(path) else [nbytes]
        head = start + path.startup_ps + delay_ps
        all_left, all_arrived = _last_of(len(pieces), left), _last_of(len(pieces), arrived)
        for index, size in enumerate(pieces):
            Journey(self, path, size, flow, number * PIECES + index, head, all_left, all_arrived)
            head += path.occupied_ps(size)


def _last_of(count: int, then: Callable[[int], None]) -> Callable[[int], None]:
    """Call ``then`` with the latest of ``count`` times, when all have come."""
    if count == 1:
        return then
    times: list[int] = []

    def one(time: int) -> None:
        times.append(time)
        if len(times) == count:
            then(max(times))

    return one


class Move(Pending):
    """The arrival of a whole transfer that is not cut into pieces, followed from its hazards on.

    ``left`` is when the source is free again; both become known as soon as they can be. The usual case of a
    contended machine: it does what `Transfers.start` and `Journey` do for pieces, without their callbacks.
    """

    __slots__ = (
        "busy", "delay", "deps", "flow", "head", "left", "need", "number", "path", "size", "stage", "start",
        "tail", "transfers", "watch",
    )  # fmt: skip

    def __init__(
        self, transfers: Transfers, path: Path, size: int, flow: int, number: int, delay: int = 0
    ) -> None:
        self.value = None
        self.waiters = []
        self.transfers = transfers
        self.path = path
        self.size = size
        self.flow = flow
        self.number = number * PIECES
        self.delay = delay
        self.left = Pending()
        self.busy: Any = ()
        """How long each stage is busy; where only one can be, its `OnlyStage`."""
        self.stage = 0
        self.watch: Pending | None = None
        """Set to be told the start as well (for a record)."""

    def after(self, times: list[Any], least: int) -> None:
        """Begin when all these times are known, at the latest of them."""
        unknown = []
        for time in times:
            if type(time) is not int:
                if time.value is None:
                    unknown.append(time)
                    continue
                time = time.value
            if time > least:
                least = time
        self.begin_after(unknown, least)

    def begin_after(self, unknown: list[Pending], least: int) -> None:
        """Begin when these are known, not before ``least``."""
        self.start = least
        if unknown:
            self.deps = unknown
            self.need = len(unknown)
            for time in unknown:
                time.waiters.append(self._known)
        else:
            self._begin()

    def _known(self) -> None:
        self.need -= 1
        if not self.need:
            start = self.start
            for time in self.deps:
                if time.value > start:  # type: ignore[operator]
                    start = time.value  # type: ignore[assignment]
            self.start = start
            self.deps = []
            self._begin()

    def _begin(self) -> None:
        path = self.path
        if self.watch is not None:
            self.watch.set(self.start)
        self.head = head = self.start + path.startup_ps + self.delay
        only = self.transfers.only_stage(path, self.size)
        if only is not None:
            self.busy = only
            entry = (
                head + path.before_ps,
                REQUEST,
                self.flow,
                self.number,
                path.first_resource,
                self._only_turn,
            )
            heapq.heappush(self.transfers.queue, entry)
            return
        dma, self.busy = path.stage_ps(self.size)
        self.tail = head + dma
        if path.first_resource is None:
            self.left.set(head + path.held_ps(self.size))
        self._go(queued=False)

    def _only_turn(self, now: int) -> None:
        """The turn on the only stage of the way that can be busy: everything follows from it."""
        transfers = self.transfers
        _, _, resource, busy, ahead, behind, after, held = self.busy
        turn = transfers.servers.serve(resource, now, busy)
        self.left.set(turn + held)
        tail = max(now + ahead, turn + behind) + after
        if tail > transfers.last_ps:
            transfers.last_ps = tail
        self.set(tail)

    def _go(self, queued: bool) -> None:
        """Follow the stages up to the next shared one."""
        transfers, path = self.transfers, self.path
        shared, everything = transfers.shared, transfers.everything
        for index in range(self.stage, len(path.stages)):
            stage = path.stages[index]
            resource = stage.resource
            turn = self.head
            if resource is not None:
                if everything or resource in shared:
                    self.stage = index
                    entry = (turn, REQUEST, self.flow, self.number, index, self._turn)
                    heapq.heappush(transfers.queue, entry)
                    return
                if queued:
                    turn = transfers.servers.serve(resource, turn, self.busy[index])
                if index == path.first_resource:
                    self.left.set(turn - path.before_ps + path.held_ps(self.size))
            self.tail = max(self.tail, turn + self.busy[index]) + stage.latency_ps
            self.head = turn + stage.latency_ps
        tail = max(self.tail, self.head) + path.extra_ps
        transfers.last_ps = max(transfers.last_ps, tail)
        self.set(tail)

    def _turn(self, now: int) -> None:
        """The stage's queue has come to us."""
        index, path = self.stage, self.path
        stage = path.stages[index]
        busy = self.busy[index]
        transfers = self.transfers
        turn = transfers.servers.serve(stage.resource, now, busy)  # type: ignore[arg-type]
        if index == path.first_resource:
            self.left.set(turn - path.before_ps + path.held_ps(self.size))
        latency = stage.latency_ps
        self.tail = max(self.tail, turn + busy) + latency
        self.head = turn + latency
        self.stage = index + 1
        self._go(queued=True)


class Journey:
    """One piece of a transfer on its way."""

    __slots__ = (
        "arrived", "busy", "flow", "gone", "head", "left", "number", "path", "queued", "size", "stage",
        "tail", "transfers",
    )  # fmt: skip

    def __init__(
        self,
        transfers: Transfers,
        path: Path,
        size: int,
        flow: int,
        number: int,
        head: int,
        left: Callable[[int], None],
        arrived: Callable[[int], None],
    ) -> None:
        self.transfers = transfers
        self.path = path
        self.size = size
        self.flow = flow
        self.number = number
        self.left = left
        self.arrived = arrived
        dma, self.busy = path.stage_ps(size)
        self.head = head
        self.tail = head + dma
        self.gone = path.first_resource is None
        self.queued = False
        self.stage = 0
        if self.gone:
            left(head + path.held_ps(size))
        self.go()

    def go(self) -> None:
        """Follow the stages up to the next shared one."""
        program = self.transfers._program
        for index in range(self.stage, len(self.path.stages)):
            stage = self.path.stages[index]
            if program.is_shared(stage.resource):
                self.stage = index
                key = (self.flow, self.number, index)
                assert stage.resource is not None
                self.transfers.request(self.head, key, stage.resource, self.busy[index], self.turn)
                return
            # Before the first shared stage nothing can be in the way; after it, only earlier messages.
            turn = self.head
            if self.queued and stage.resource is not None:
                turn = self.transfers.servers.serve(stage.resource, self.head, self.busy[index])
            self._pass(index, turn)
        # A way without any latency still takes its 1 ps, so that time moves on.
        self.arrived(max(self.tail, self.head) + self.path.extra_ps)

    def turn(self, turn: int) -> None:
        """The shared stage is ours from ``turn`` on."""
        index = self.stage
        self.queued = True
        self._pass(index, turn)
        self.stage = index + 1
        self.go()

    def _pass(self, index: int, turn: int) -> None:
        latency = self.path.stages[index].latency_ps
        if index == self.path.first_resource and not self.gone:
            # The source is held up as long as the head waits at the first stage where it can.
            self.gone = True
            self.left(turn - self.path.before_ps + self.path.held_ps(self.size))
        self.tail = max(self.tail, turn + self.busy[index]) + latency
        self.head = turn + latency
