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
from typing import Any

from megatile.sim.general import GeneralRules
from megatile.sim.outcome import outcome
from megatile.sim.pending import Pending
from megatile.sim.program import (
    CONSUME,
    COPY,
    LOAD,
    MEET,
    PUT,
    RECEIVE,
    RELEASE,
    RUN,
    SEND,
    SHIP,
    SIGNAL,
    TAKE,
    WAIT,
    Program,
)  # fmt: skip
from megatile.sim.times import Times
from megatile.sim.transfers import PIECES, REQUEST, Transfers
from megatile.sim.unit import UnitState

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
        self.flags: list[list[int]] = [[] for _ in program.flags]
        """Per flag that one unit alone raises, when each unit of its count arrives."""
        self.wait_flag: dict[int, UnitState] = {}
        self.last_ps = 0
        blocks = len(program.regions.written)
        if not program.everything_shared and not program.orders_shared and blocks * len(units) <= 20 * _FEW:
            for unit in units:
                unit.writers, unit.readers = [0] * blocks, [0] * blocks
        self.transfers = Transfers(program, self.queue)
        self.rules = GeneralRules(self)

    def run(self) -> Times:
        """Run units as far as they go; serve the time queue when none can go on."""
        self.advance()
        times = outcome(self)
        # Without this cycle, reference counts alone free the millions of operations.
        self.rules.close()
        return times

    def _serve(self) -> bool:
        """Serve the time queue until a unit can go on; False if none ever can."""
        queue, ready = self.queue, self.ready
        while queue and not ready:
            entry = heapq.heappop(queue)
            then = entry[-1]
            if type(then) is UnitState:
                self.transfers.load(then, entry[0])
                ready.append(then)
            else:
                then(entry[0])
        return bool(ready)

    def advance(self) -> None:
        """Run every unit that is ready until it lacks something, and on when the time queue lets it.

        This is the hot loop: one function, tables in local names, the usual operations written out.
        """
        arrivals, credits, ready, record = self.arrivals, self.credits, self.ready, self.record
        wait_data, wait_credit = self.wait_data, self.wait_credit
        flags, wait_flag, requests, heappush = self.flags, self.wait_flag, self.queue, heapq.heappush
        written, read = self.program.regions.written, self.program.regions.read
        meetings = self.rules.meetings
        pendings = self.program.everything_shared or bool(self.program.shared)
        while ready or self._serve():
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
                            if pendings and type(readers[block]) is not int:
                                raise TypeError
                        for block in writes:
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
                            if pendings and type(readers[block]) is not int:
                                raise TypeError  # a Pending must show before anything changes
                        for block in writes:
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
                        for block in reads:
                            if readers[block] < end:
                                readers[block] = end
                        for block in writes:
                            writers[block] = end
                        if record:
                            unit.start.append(start)
                            unit.end.append(end)
                    elif kind == LOAD:
                        _, info, number, reads, writes, _ = operation
                        start = free[info[0]]
                        if start < now:
                            start = now
                        for block in reads:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                            if type(readers[block]) is not int:
                                raise TypeError
                        for block in writes:
                            for other in written[block]:
                                time = writers[other]
                                if time > start:
                                    start = time
                            for other in read[block]:
                                time = readers[other]
                                if time > start:
                                    start = time
                        _, _, _, flow, (lead, place, *_) = info
                        heappush(requests, (start + lead, REQUEST, flow, number * PIECES, place, unit))
                        break
                    elif kind == PUT:
                        _, (engine, busy, latency, _), reads, writes = operation
                        start = free[engine]
                        if start < now:
                            start = now
                        for before, _, block in reads:
                            for other in before:
                                time = writers[other]
                                if time > start:
                                    start = time
                            if pendings and type(readers[block]) is not int:
                                raise TypeError
                        for before, others, _ in writes:
                            for other in before:
                                time = writers[other]
                                if time > start:
                                    start = time
                            for other in others:
                                time = readers[other]
                                if time > start:
                                    start = time
                        left = start + busy
                        end = left + latency
                        if unit.touched < end:
                            unit.touched = end
                        free[engine] = left
                        for _, _, block in reads:
                            if readers[block] < end:
                                readers[block] = end
                        for _, _, block in writes:
                            writers[block] = end
                    elif kind == SIGNAL:
                        _, (flag, delay), amount = operation
                        time = unit.touched
                        if time < now:
                            time = now
                        flags[flag].extend([time + delay] * amount)
                        if flag in wait_flag:
                            ready.append(wait_flag.pop(flag))
                    elif kind == WAIT:
                        _, flag, value, _ = operation
                        if value > 0:
                            raised = flags[flag]
                            if len(raised) < value:
                                wait_flag[flag] = unit
                                break
                            time = raised[value - 1]
                            if time > now:
                                now = time
                    elif kind == SHIP:
                        unit.pc, unit.now = pc, now
                        going = self.rules.ship(unit, operation)
                        now = unit.now
                        if not going:
                            break
                    elif kind == COPY:
                        unit.now = now
                        self.rules.plain_copy(unit, operation)
                    elif kind == MEET:
                        _, key, units, delay, _ = operation
                        meeting = meetings[key]
                        if not meeting.complete:
                            time = unit.touched
                            if time < now:
                                time = now
                            if not meeting.comes(unit, time, units):
                                break
                            ready.extend(u for u in meeting.came.values() if u is not unit)
                        now = meeting.latest + delay
                    elif kind == RECEIVE:
                        _, (queue, _), number, slot, _ = operation
                        arrived = arrivals[queue]
                        if len(arrived) <= number:
                            wait_data[queue] = unit
                            break
                        arrival = arrived[number]
                        begin = now
                        if pendings and type(arrival) is not int:
                            arrival = arrival.value
                            if arrival is None:
                                self.resume_when(unit, arrived[number])
                                break
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

    def wake(self, waiting: dict[int, UnitState], key: int) -> None:
        """Let the unit that waits for this queue or flag try again, if there is one."""
        unit = waiting.pop(key, None)
        if unit is not None:
            self.ready.append(unit)

    def resume_when(self, unit: UnitState, time: Pending) -> None:
        """Let a unit try again as soon as a time is known that is not known yet."""
        time.waiters.append(lambda: self.ready.append(unit))
