"""Transfers through shared resources: one entry in the time queue when a head reaches such a resource."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from megatile.plan.timing.fabric import Path
from megatile.sim.program import Program

DECISION, REQUEST = 0, 1
"""Phases: at one time, deliveries and decisions come before requests for resources."""


class Servers:
    """Resources as FIFO servers; a wide one serves several at a time."""

    def __init__(self, widths: list[int]) -> None:
        self._widths = widths
        self._free: dict[int, int] = {}
        self._wide: dict[int, list[int]] = {}

    def serve(self, resource: int, head_ps: int, busy_ps: int) -> int:
        """The time at which a request gets its turn."""
        width = self._widths[resource]
        if width == 1:
            turn = max(head_ps, self._free.get(resource, 0))
            self._free[resource] = turn + busy_ps
            return turn
        lanes = self._wide.setdefault(resource, [0] * width)
        turn = max(head_ps, lanes[0])
        heapq.heapreplace(lanes, turn + busy_ps)
        return turn


class Transfers:
    """Moves transfers along their stages; whoever starts one is called back with its times."""

    def __init__(self, program: Program, queue: list[tuple[Any, ...]]) -> None:
        self._program = program
        self._queue = queue
        self.servers = Servers(program.machine.fabric.widths)

    def request(
        self, time: int, key: tuple[int, int, int], resource: int, busy_ps: int, then: Callable[[int], None]
    ) -> None:
        """Ask for a resource; ``then`` gets the time of the turn. ``key`` is (flow, number, hop)."""
        heapq.heappush(
            self._queue,
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
            Journey(self, path, size, flow, number * 2048 + index, head, all_left, all_arrived)
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


class Journey:
    """One piece of a transfer on its way."""

    __slots__ = (
        "arrived", "busy", "flow", "gone", "head", "left", "number", "path", "queued", "size", "stage", "tail",
        "transfers",
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
