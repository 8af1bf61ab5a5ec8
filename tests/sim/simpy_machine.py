"""The machine of the SimPy reader: time in whole picoseconds, servers, transfers.

Within one picosecond: first everything that happens (ends, deliveries, credits, issue), then instances take
the slots that have become free, then receive-from-any decides, then requests for servers, one by one in the
order of their keys; whatever a request brings about in the same picosecond happens before the next request.
SimPy's priorities say exactly that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator
from heapq import heappop, heappush
from typing import Any

import simpy
from tests.sim.simpy_caches import Caches

Process = Generator[Any, Any, Any]
DISPATCH, DECIDE, REQUEST = 2, 3, 4
"""SimPy runs what has the lower number first; what just happens has 0 or 1."""
PIECES = 2048
"""Message numbers are spread by this, so that the pieces of a message have numbers of their own."""


class Bell:
    """Rings whenever something changed; whoever waits looks again."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.event = env.event()

    def ring(self) -> None:
        self.event.succeed()
        self.event = self.env.event()


class Servers:
    """What all launches on a machine share: resources by key, each first come, first served by as many as it
    is wide, and who holds which hardware unit."""

    def __init__(self) -> None:
        self.env = simpy.Environment()
        self.holders: list[tuple[Any, int, simpy.Event]] = []
        """Hardware units, the launches that were submitted to them, and when those have ended there."""
        self.flags: dict[Any, Any] = defaultdict(lambda: ([0], Bell(self.env)))
        """Installed flags, by hardware unit, name and member."""
        self.lines: dict[Any, Any] = {}
        """Queues of installed channels, by hardware unit, channel and member."""
        self.taken: dict[int, int] = defaultdict(int)
        """By device, the compute units that kernels of libraries have."""
        self.dispatchers: list[Any] = []
        """What is called when such a kernel has ended."""
        self.caches = Caches(self)
        self._known: dict[Any, simpy.Resource] = {}
        self._asking: dict[int, list[tuple[Any, simpy.Event]]] = defaultdict(list)

    def take(self, here: Any, launch: int, over: simpy.Event, hda: Any) -> list[simpy.Event]:
        """A launch takes a hardware unit; the ends it waits for: of the same unit, or one in the other."""
        total = {unit.level: hda.level(unit.level).total for unit, *_ in [*self.holders, (here,)]}

        def meets(other: Any) -> bool:
            least = min(total[here.level], total[other.level])
            return here.index * least // total[here.level] == other.index * least // total[other.level]

        before = [end for unit, other, end in self.holders if other != launch and meets(unit)]
        self.holders.append((here, launch, over))
        return before

    def later(self, priority: int) -> simpy.Event:
        """An event in a later phase of this picosecond."""
        event = self.env.event()
        event._ok, event._value = True, None
        self.env.schedule(event, priority)
        return event

    def order(self, key: tuple[int, ...]) -> Process:
        """Wait for one's place among the requests of this picosecond."""
        mine = self.env.event()
        heappush(self._asking[self.env.now], (key, mine))
        self.later(REQUEST).callbacks.append(self._next)
        yield mine

    def turn(self, fabric: Any, resource: Any, key: tuple[int, ...], busy_ps: int) -> Process:
        """Ask for a server and return when it is got; it is given back after ``busy_ps`` by itself."""
        yield from self.order(key)
        yield from self.serve(resource, fabric.widths[resource], busy_ps)

    def serve(self, name: Any, width: int, busy_ps: int) -> Process:
        """The same without waiting for one's place."""
        if name not in self._known:
            self._known[name] = simpy.Resource(self.env, width)
        server = self._known[name]
        request = server.request()
        yield request
        self.env.process(self._hold(server, request, busy_ps))

    def _next(self, _: simpy.Event) -> None:
        heappop(self._asking[self.env.now])[1].succeed()

    def _hold(self, server: simpy.Resource, request: Any, busy_ps: int) -> Process:
        yield self.env.timeout(busy_ps)
        server.release(request)


class Transfer:
    """A transfer over a path that starts now: ``left`` when its source is free, ``landed`` on arrival."""

    def __init__(
        self,
        reader: Any,
        path: Any,
        nbytes: int,
        flow: int,
        number: int,
        delay_ps: int,
        read: Any = None,
        written: Any = None,
    ):
        """``read``, ``written``: the blocks that caches are asked for, and the bytes of each."""
        self.env, self.reader, self.turn, self.path, self.flow = reader.env, reader, reader.turn, path, flow
        self.read, self.written, self.nbytes = read, written, nbytes
        wait = path.startup_ps + delay_ps
        left, landed = [], []
        alone = all(stage.resource is None for stage in path.stages)
        for index, size in enumerate([nbytes] if alone else path.pieces(nbytes)):
            left.append(self.env.event())
            landed.append(self.env.event())
            self.env.process(self._piece(wait, size, number * PIECES + index, left[-1], landed[-1]))
            wait += path.occupied_ps(size)
        self.left, self.landed = self.env.all_of(left), self.env.all_of(landed)

    @property
    def caches(self) -> Caches:
        return self.reader.servers.caches

    @property
    def fabric(self) -> Any:
        return self.reader.fabric

    def _at(self, event: simpy.Event, time: int) -> Process:
        yield self.env.timeout(time - self.env.now)
        event.succeed()

    def _piece(self, wait: int, size: int, number: int, left: Any, landed: Any) -> Process:
        """Cut-through: the head goes from stage to stage, the tail follows as fast as the slowest part."""
        env, path = self.env, self.path
        yield env.timeout(wait)
        begin, occupied = env.now, path.occupied_ps(size)
        dma, busy = path.stage_ps(size)
        tail = begin + dma
        gone = all(stage.resource is None for stage in path.stages)
        if gone:
            env.process(self._at(left, begin + occupied))
        late: list[tuple[Any, int]] = []
        """What the tail waits for: events that have a time, and what passes after it."""
        whole = sum(stage.latency_ps for stage in path.stages)
        for hop, stage in enumerate(path.stages):
            if stage.resource is not None:
                asked, key, first = env.now, (self.flow, number, hop), None
                reads = self.read is not None and hop == 0
                writes = self.written is not None and hop == len(path.stages) - 1
                if reads or writes:
                    yield from self.reader.order(key)
                if reads:
                    turns, latency, new, found = self.caches.load(self.fabric, path.reads, *self.read)
                    late += [(held.known, whole) for held in found]
                    if turns:
                        served = yield env.all_of(turns)
                        first, filled = env.now, max(served[t][1] for t in turns) + latency
                        for held in new:
                            held.known.succeed(filled)
                        tail = max(tail, filled)
                        env.process(self._at(left, begin + first - asked + occupied))
                        gone = True
                        yield env.timeout(latency)
                        yield from self.reader.order(key)
                if writes:
                    turns = self.caches.store(self.fabric, path.writes, *self.written, self.nbytes)
                    late += [(t, latency) for t, latency in turns]
                if reads or writes:
                    yield from self.reader.take(stage.resource, busy[hop])
                else:
                    yield from self.turn(stage.resource, key, busy[hop])
                if not gone:
                    # Until its first turn the message stands at the source: all of it leaves that much later.
                    waited = env.now - asked
                    env.process(self._at(left, max(env.now, begin + waited + occupied)))
                    gone = True
            tail = max(tail, env.now + busy[hop]) + stage.latency_ps
            yield env.timeout(stage.latency_ps)
        for event, after in late:
            time = yield event
            tail = max(tail, (time[1] if isinstance(time, tuple) else time) + after)
        extra = path.latency_ps - whole
        yield env.timeout(max(tail, env.now) + extra - env.now)
        landed.succeed()
