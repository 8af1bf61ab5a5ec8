"""Time in order, and what waits for it: the parts of the plain evaluator (`bucket`)."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from megatile.sim.regions import overlap

Action = Callable[[], None]


class Clock:
    """Time in buckets; each bucket has things that happen, decisions, and requests."""

    def __init__(self) -> None:
        self.now = 0
        self._times: list[int] = []
        self._happen: dict[int, deque[Action]] = defaultdict(deque)
        self._decide: dict[int, deque[Action]] = defaultdict(deque)
        self._ask: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        self._known: set[int] = set()

    def _open(self, time: int) -> int:
        if time not in self._known:
            self._known.add(time)
            heapq.heappush(self._times, time)
        return time

    def at(self, time: int, action: Action) -> None:
        self._happen[self._open(time)].append(action)

    def decide(self, action: Action) -> None:
        self._decide[self._open(self.now)].append(action)

    def ask(self, time: int, key: tuple[int, ...], action: Action) -> None:
        heapq.heappush(self._ask[self._open(time)], (*key, action))

    def run(self) -> None:
        while self._times:
            self.now = time = heapq.heappop(self._times)
            while True:
                if self._happen[time]:
                    self._happen[time].popleft()()
                elif self._decide[time]:
                    self._decide[time].popleft()()
                elif self._ask[time]:
                    heapq.heappop(self._ask[time])[-1]()
                else:
                    break
            self._known.discard(time)
            for table in (self._happen, self._decide, self._ask):
                table.pop(time, None)


class Gate:
    """Opens once; whoever waits is told then."""

    __slots__ = ("open", "waiters")

    def __init__(self) -> None:
        self.open = False
        self.waiters: list[Action] = []

    def unlock(self) -> None:
        self.open = True
        for waiter in self.waiters:
            waiter()
        self.waiters = []


def after(gates: list[Gate], action: Action) -> None:
    """Run ``action`` when all gates are open."""
    closed = [g for g in gates if not g.open]
    if not closed:
        action()
        return
    left = len(closed)

    def opened() -> None:
        nonlocal left
        left -= 1
        if not left:
            action()

    for gate in closed:
        gate.waiters.append(opened)


class Server:
    """A resource that serves ``width`` requests at a time, first come, first served."""

    def __init__(self, clock: Clock, width: int) -> None:
        self._clock = clock
        self._free = width
        self._line: deque[tuple[int, Action]] = deque()

    def request(self, busy_ps: int, granted: Action) -> None:
        self._line.append((busy_ps, granted))
        self._serve()

    def _serve(self) -> None:
        while self._free and self._line:
            busy, granted = self._line.popleft()
            self._free -= 1
            self._clock.at(self._clock.now + busy, self._leave)
            granted()

    def _leave(self) -> None:
        self._free += 1
        self._serve()


class Accesses:
    """Unfinished accesses of one unit, as plain blocks."""

    def __init__(self) -> None:
        self._open: dict[Any, list[tuple[Any, bool, Gate]]] = defaultdict(list)

    def conflicts(self, key: Any, bounds: Any, write: bool) -> list[Gate]:
        kept = self._open[key] = [entry for entry in self._open[key] if not entry[2].open]
        return [g for block, wrote, g in kept if (write or wrote) and overlap(bounds, block)]

    def add(self, key: Any, bounds: Any, write: bool, gate: Gate) -> None:
        self._open[key].append((bounds, write, gate))


def opened_gate() -> Gate:
    gate = Gate()
    gate.open = True
    return gate
