"""The general evaluator: each unit runs ahead on its own clock until a queue is empty.

Nothing here is ordered by time except what has to be: requests for shared resources, receive-from-any and
waits for flags enter the time queue, and the queue is only served when no unit can run on. That is safe:
whatever is still unknown then depends on an entry of the queue and so comes later than its first.

A time that depends on a request not yet served is a `Pending`. The fast paths below never look for one:
comparing a Pending raises TypeError before any state has changed, and the general path takes over.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from megatile.sim.general import GeneralRules
from megatile.sim.pending import Pending, known, when
from megatile.sim.program import CONSUME, RECEIVE, RELEASE, RUN, SEND, TAKE, Program
from megatile.sim.times import Times
from megatile.sim.transfers import Transfers


class UnitState:
    """One unit on its own clock."""

    __slots__ = (
        "done", "end", "free", "more", "now", "operations", "pc", "readers", "start", "touched", "unit",
        "writers",
    )  # fmt: skip

    def __init__(self, unit: int, now: int, engines: int, operations: list[Any]) -> None:
        self.unit = unit
        self.now = now
        self.free: list[Any] = [0] * engines
        self.writers: Any = defaultdict(int)
        self.readers: Any = defaultdict(int)
        """When each block was last written, and read: a list where the blocks are known and few."""
        self.operations = operations
        self.pc = 0
        self.touched: Any = 0
        """When the unit's accesses to shared storage have finished."""
        self.start: list[Any] = []
        self.end: list[Any] = []
        self.more: Iterator[tuple[Any, ...]] | None = None
        """Where further operations come from, for units that are followed while they run."""
        self.done = False


_FEW = 1_000_000
"""Up to this many entries a table is a list: looking one up is twice as fast as in a dict."""


class RunAhead:
    """Evaluates a program; ``record`` keeps the times of every operation."""

    def __init__(self, program: Program, units: list[UnitState], *, record: bool = False) -> None:
        self.program = program
        self.units = units
        self.record = record
        self.queue: list[tuple[Any, ...]] = []
        self.ready: list[UnitState] = list(reversed(units))
        few = program.queues <= _FEW
        self.arrivals: Any = [[] for _ in range(program.queues)] if few else defaultdict(list)
        self.credits: Any = [{} for _ in range(program.queues)] if few else defaultdict(dict)
        self.wait_data: dict[int, UnitState] = {}
        self.wait_credit: dict[int, UnitState] = {}
        self.last_ps = 0
        blocks = len(program.regions.written)
        if not program.everything_shared and not program.orders_shared and blocks * len(units) <= 20 * _FEW:
            for unit in units:
                unit.writers, unit.readers = [0] * blocks, [0] * blocks
        self.transfers = Transfers(program, self.queue)
        self.rules = GeneralRules(self)

    def run(self) -> Times:
        """Run units as far as they go; serve the time queue when none can go on."""
        queue = self.queue
        while True:
            self.advance()
            if not queue:
                times = self._times()
                # Without this cycle, reference counts alone free the millions of operations.
                self.rules.close()
                return times
            entry = heapq.heappop(queue)
            entry[-1](entry[0])

    def advance(self) -> None:
        """Run every unit that is ready until it lacks something.

        This is the hot loop: one function, tables in local names, the usual operations written out.
        """
        arrivals, credits, ready, record = self.arrivals, self.credits, self.ready, self.record
        wait_data, wait_credit = self.wait_data, self.wait_credit
        written, read = self.program.regions.written, self.program.regions.read
        pendings = self.program.everything_shared or bool(self.program.shared)
        while ready:
            unit = ready.pop()
            operations, free, writers, readers = unit.operations, unit.free, unit.writers, unit.readers
            pc, now = unit.pc, unit.now
            count = len(operations)
            while True:
                if pc == count:
                    unit.pc, unit.now = pc, now
                    if not self._fetch(unit):
                        break
                    count = len(operations)
                operation = operations[pc]
                kind = operation[0]
                try:
                    if kind == SEND:
                        _, info, number, block, _ = operation
                        engine, queue, slots, busy, latency, _, _ = info
                        if number >= slots:
                            credit = credits[queue].get(number - slots)
                            if credit is None:
                                wait_credit[queue] = unit
                                break
                            if credit > now:
                                now = credit
                        start = free[engine]
                        if start < now:
                            start = now
                        for other in written[block]:
                            time = writers[other]
                            if time > start:
                                start = time
                        end = start + busy
                        if readers[block] < end:
                            readers[block] = end
                        free[engine] = end
                        arrivals[queue].append(end + latency)
                        if queue in wait_data:
                            ready.append(wait_data.pop(queue))
                        if record:
                            unit.start.append(start)
                            unit.end.append(end)
                    elif kind == CONSUME:
                        _, (queue, engine, busy, credit_ps, _, _, _), number, reads, writes = operation
                        arrived = arrivals[queue]
                        if len(arrived) <= number:
                            wait_data[queue] = unit
                            break
                        arrival = arrived[number]
                        if arrival > now:
                            now = arrival
                        start = free[engine]
                        if start < now:
                            start = now
                        for block in reads:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                        for block in writes:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                            for other in read[block]:
                                time = readers[other]
                                if time > start:
                                    start = time
                        if pendings and any(type(readers[block]) is not int for block in reads):
                            raise TypeError
                        end = start + busy
                        free[engine] = end
                        for block in reads:
                            if readers[block] < end:
                                readers[block] = end
                        for block in writes:
                            writers[block] = end
                        credits[queue][number] = end + credit_ps
                        if queue in wait_credit:
                            ready.append(wait_credit.pop(queue))
                    elif kind == TAKE:
                        _, (queue, engine, busy, latency, credit_ps, _), number, block, _ = operation
                        arrived = arrivals[queue]
                        if len(arrived) <= number:
                            wait_data[queue] = unit
                            break
                        arrival = arrived[number]
                        if arrival > now:
                            now = arrival
                        start = free[engine]
                        if start < now:
                            start = now
                        for other in written[block]:
                            time = writers[other]
                            if time > start:
                                start = time
                        for other in read[block]:
                            time = readers[other]
                            if time > start:
                                start = time
                        end = start + busy
                        free[engine] = end
                        end += latency
                        writers[block] = end
                        credits[queue][number] = end + credit_ps
                        if queue in wait_credit:
                            ready.append(wait_credit.pop(queue))
                        if record:
                            unit.start.append(start)
                            unit.end.append(end)
                    elif kind == RUN:
                        _, (engine, busy, latency, _), reads, writes = operation
                        start = free[engine]
                        if pendings and type(start) is not int:
                            # The general path at once: an exception costs more than all the rest.
                            unit.now = now
                            self.rules.plain_work(unit, operation)
                            pc += 1
                            continue
                        if start < now:
                            start = now
                        for block in reads:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                        for block in writes:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                            for other in read[block]:
                                time = readers[other]
                                if time > start:
                                    start = time
                        if pendings and any(type(readers[block]) is not int for block in reads):
                            raise TypeError  # a Pending must show before anything changes
                        end = start + busy
                        free[engine] = end
                        end += latency
                        for block in reads:
                            if readers[block] < end:
                                readers[block] = end
                        for block in writes:
                            writers[block] = end
                        if record:
                            unit.start.append(start)
                            unit.end.append(end)
                    elif kind == RECEIVE:
                        _, (queue, _), number, slot, _ = operation
                        arrived = arrivals[queue]
                        if len(arrived) <= number:
                            wait_data[queue] = unit
                            break
                        arrival = arrived[number]
                        begin = now
                        if arrival > now:
                            now = arrival
                        writers[slot] = arrival
                        if record:
                            unit.start.append(begin)
                            unit.end.append(now)
                    elif kind == RELEASE:
                        _, (queue, slot, credit_ps, _), number, _ = operation
                        time = now
                        for other in read[slot]:
                            if readers[other] > time:
                                time = readers[other]
                        for other in written[slot]:
                            if writers[other] > time:
                                time = writers[other]
                        credits[queue][number] = time + credit_ps
                        if queue in wait_credit:
                            ready.append(wait_credit.pop(queue))
                        if record:
                            unit.start.append(now)
                            unit.end.append(time)
                    else:
                        unit.pc, unit.now = pc, now
                        going = self.rules.apply(unit, operation)
                        now = unit.now
                        if not going:
                            break
                except TypeError:
                    if not pendings:
                        raise
                    unit.pc, unit.now = pc, now
                    going = self.rules.apply(unit, operation)
                    now = unit.now
                    if not going:
                        break
                pc += 1
            unit.pc, unit.now = pc, now

    def _fetch(self, unit: UnitState) -> bool:
        """The next operation of a unit that is followed while it runs; False at its end."""
        if unit.more is not None:
            for operation in unit.more:
                unit.operations.append(operation)
                return True
        unit.done = True
        return False

    # waking

    def wake_data(self, queue: int) -> None:
        unit = self.wait_data.pop(queue, None)
        if unit is not None:
            self.ready.append(unit)

    def wake_credit(self, queue: int) -> None:
        unit = self.wait_credit.pop(queue, None)
        if unit is not None:
            self.ready.append(unit)

    def resume_when(self, unit: UnitState, time: Pending) -> None:
        """Let a unit try again as soon as a time is known."""
        when((time,), 0, lambda _: self.ready.append(unit))

    # the end

    def _times(self) -> Times:
        end = max(self.last_ps, self.transfers.last_ps)
        for unit in self.units:
            end = max(end, unit.now, *(_last(_values(t)) for t in (unit.free, unit.writers, unit.readers)))
        for arrived in _values(self.arrivals):
            end = max(end, _last(arrived))
        times = Times(end)
        times.operations = [u.operations for u in self.units]
        times.choices = self.rules.choices
        if any(not u.done for u in self.units):
            times.stuck = self.rules.wait_graph(times.end_ps)
            return times
        if self.record:
            times.start = [[known(t) or 0 for t in u.start] for u in self.units]
            times.end = [[known(t) or 0 for t in u.end] for u in self.units]
            every = self.arrivals.items() if isinstance(self.arrivals, dict) else enumerate(self.arrivals)
            times.arrival = {q: [known(t) or 0 for t in a] for q, a in every if a}
        return times


def _values(table: Any) -> Any:
    return table.values() if isinstance(table, dict) else table


def _last(times: Any) -> int:
    """The latest of some times; those that never became known do not count."""
    try:
        latest = max(times, default=0)
        return latest if type(latest) is int else known(latest) or 0
    except TypeError:
        return max((known(t) or 0 for t in times), default=0)
