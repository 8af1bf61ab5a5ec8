"""Messages cut into granules that take turns on shared resources: many small events, so with few steps each.

It does what `Transfers.start` and `Journey` do, for messages whose times are not recorded.
"""

from __future__ import annotations

import heapq

from megatile.sim.transfers import REQUEST, Move, Transfers
from megatile.timing.fabric import Path

_END = (None, False)


class Way:
    """What every granule of one size on one path needs, worked out once.

    ``stages`` are (resource or None, may others be in the way there, busy_ps, latency_ps, is it the first
    resource, does one at a time use it). ``steps`` are, for shared stages that one at a time uses and after
    which the next shared one comes at once: (resource, busy_ps, latency_ps, is it the first resource).
    """

    __slots__ = ("dma_ps", "first_ps", "free", "held_ps", "occupied_ps", "queue", "stages", "steps")

    def __init__(self, transfers: Transfers, path: Path, size: int) -> None:
        self.dma_ps, busy = path.stage_ps(size)
        self.occupied_ps = path.occupied_ps(size)
        self.held_ps = path.held_ps(size)
        self.first_ps = self.held_ps - path.before_ps
        widths = transfers.servers.widths
        self.stages = tuple(
            (
                stage.resource,
                stage.resource is not None and (transfers.everything or stage.resource in transfers.shared),
                busy[index],
                stage.latency_ps,
                index == path.first_resource,
                stage.resource is not None and widths[stage.resource] == 1,
            )
            for index, stage in enumerate(path.stages)
        )
        self.steps = [
            (resource, busy_ps, latency, first)
            if resource is not None and shared and single and following[1]
            else None
            for (resource, shared, busy_ps, latency, first, single), following in zip(
                self.stages, (*self.stages[1:], _END), strict=True
            )
        ]
        self.queue = transfers.queue
        self.free = transfers.servers.free


class Ways:
    """The granules of messages by path and size."""

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self._known: dict[tuple[int, int], tuple[Path, list[Way]]] = {}

    def of(self, path: Path, size: int) -> list[Way]:
        """The way of every granule of a message."""
        key = (id(path), size)
        known = self._known.get(key)
        if known is None:
            made = {piece: Way(self.transfers, path, piece) for piece in set(path.pieces(size))}
            known = self._known[key] = (path, [made[piece] for piece in path.pieces(size)])
        return known[1]


class Train(Move):
    """The arrival of a message that is cut into granules; ``left``: the source is free again."""

    __slots__ = ("coming", "here", "latest", "leaving", "ways")

    def __init__(self, ways: Ways, path: Path, size: int, flow: int, number: int) -> None:
        super().__init__(ways.transfers, path, size, flow, number)
        self.ways = ways

    def _begin(self) -> None:
        path = self.path
        ways = self.ways.of(path, self.size)
        head = self.start + path.startup_ps
        self.leaving = self.coming = len(ways)
        self.here = self.latest = 0
        number = self.number
        for way in ways:
            if path.first_resource is None:
                self.leaves(head + way.held_ps)
            Granule(self, way, number, head).go(queued=False)
            head += way.occupied_ps
            number += 1

    def leaves(self, time: int) -> None:
        """One granule has left the source."""
        if time > self.here:
            self.here = time
        self.leaving -= 1
        if not self.leaving:
            self.left.set(self.here)

    def comes(self, time: int) -> None:
        """One granule is there."""
        if time > self.latest:
            self.latest = time
        self.coming -= 1
        if not self.coming:
            if self.latest > self.transfers.last_ps:
                self.transfers.last_ps = self.latest
            self.set(self.latest)


class Granule:
    """One piece of a message on its way."""

    __slots__ = ("flow", "head", "number", "stage", "tail", "train", "way")

    def __init__(self, train: Train, way: Way, number: int, head: int) -> None:
        self.train = train
        self.way = way
        self.flow = train.flow
        self.number = number
        self.head = head
        self.tail = head + way.dma_ps
        self.stage = 0

    def turn(self, now: int) -> None:
        """The stage's queue has come to us: go on to the next stage where others may be."""
        way = self.way
        step = way.steps[self.stage]
        if step is None:
            self.head = now
            self.go(queued=True)
            return
        resource, busy, latency, first = step
        turn = way.free[resource]
        if turn < now:
            turn = now
        end = turn + busy
        way.free[resource] = end
        if first:
            self.train.leaves(turn + way.first_ps)
        self.tail = (end if end > self.tail else self.tail) + latency
        self.stage += 1
        heapq.heappush(way.queue, (turn + latency, REQUEST, self.flow, self.number, self.stage, self.turn))

    def go(self, queued: bool) -> None:
        """Follow the stages up to the next shared one, from one whose turn it is if ``queued``."""
        way, train = self.way, self.train
        servers = train.transfers.servers
        head, tail, granted = self.head, self.tail, queued
        for index in range(self.stage, len(way.stages)):
            resource, shared, busy, latency, first, _ = way.stages[index]
            turn = head
            if resource is not None:
                if shared and not granted:
                    self.tail, self.stage = tail, index
                    heapq.heappush(way.queue, (head, REQUEST, self.flow, self.number, index, self.turn))
                    return
                # Before the first shared stage nothing can be in the way; after it, only earlier messages.
                if queued:
                    turn = servers.serve(resource, head, busy)
                if first:
                    train.leaves(turn + way.first_ps)
            granted = False
            tail = max(tail, turn + busy) + latency
            head = turn + latency
        train.comes(max(tail, head) + train.path.extra_ps)
