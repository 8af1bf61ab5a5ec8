"""What holds up a unit until others have done something: any-receives, scalars, flags, meetings.

When a receive-from-any or a wait is over, the time queue decides: an arrival that is not known yet may still
be earlier than all known ones.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from megatile.sim.pending import Pending, Time, known, later, when
from megatile.sim.program import Operation
from megatile.sim.regions import Block
from megatile.sim.transfers import DECISION

if TYPE_CHECKING:
    from megatile.sim.runahead import RunAhead
    from megatile.sim.unit import UnitState


class Meeting:
    """A collective of one group: who came, and when the last one did."""

    __slots__ = ("came", "complete", "latest")

    def __init__(self) -> None:
        self.came: dict[int, UnitState] = {}
        self.latest = 0
        self.complete = False

    def comes(self, unit: UnitState, time: int, units: int) -> bool:
        """A unit is there from ``time`` on; whether that makes the meeting complete."""
        self.came[unit.unit] = unit
        if time > self.latest:
            self.latest = time
        self.complete = len(self.came) == units
        return self.complete


class Decisions:
    """Rules for these operations; `GeneralRules` has the others."""

    def __init__(self, run: RunAhead) -> None:
        self.run = run
        self.choices: dict[int, list[int]] = {}
        self.meetings: dict[Any, Meeting] = defaultdict(Meeting)
        self.signals: dict[Any, list[int]] = defaultdict(list)
        """Per flag, when each unit of its count arrives, in order of time."""
        self.flag_waiters: dict[Any, tuple[UnitState, Operation]] = {}
        self.any_waiters: dict[int, tuple[UnitState, Operation]] = {}
        self._decisions = 0

    # hazards

    def hazards(self, unit: UnitState, reads: tuple[Block, ...], writes: tuple[Block, ...]) -> list[Time]:
        """The times that an access has to wait for."""
        times = [unit.writers[b] for look, _, _ in reads for b in look]
        for written, read, _ in writes:
            times += [unit.writers[b] for b in written]
            times += [unit.readers[b] for b in read]
        return times

    def mark(self, unit: UnitState, operation: Operation, read_until: Time, written: Time) -> None:
        for _, _, block in operation.reads:
            unit.readers[block] = later(unit.readers[block], read_until)
        for _, _, block in operation.writes:
            unit.writers[block] = written
        if operation.shared:
            unit.touched = later(unit.touched, later(read_until, written))

    def note(self, unit: UnitState, start: Time, end: Time) -> None:
        if self.run.record:
            unit.start.append(start)
            unit.end.append(end)

    # receive from any

    def receive_any(self, unit: UnitState, op: Operation) -> bool:
        """Take the earliest arrival; which one that is, the time queue decides."""
        if op.value:
            return True
        for link in op.link:
            self.any_waiters[link.queue] = (unit, op)
        self._offer_any(unit, op)
        return False

    def _candidates(self, op: Operation) -> list[tuple[int, int]]:
        """(arrival, member) of every message that is known to be there for the taking."""
        found = []
        for link, number in zip(op.link, op.key, strict=True):
            arrived = self.run.arrivals[link.queue]
            value = known(arrived[number]) if len(arrived) > number else None
            if value is not None:
                found.append((value, link.member))
        return found

    def _offer_any(self, unit: UnitState, op: Operation) -> None:
        """Put a decision into the time queue at the earliest arrival known so far."""
        for link, number in zip(op.link, op.key, strict=True):
            arrived = self.run.arrivals[link.queue]
            if len(arrived) > number and known(arrived[number]) is None:
                when((arrived[number],), 0, lambda _: self._offer_any(unit, op))
        found = self._candidates(op)
        if found and not op.value:
            time = min(found)[0]
            self._decide_at(time, unit, lambda: self._decide_any(unit, op))

    def _decide_at(self, time: int, unit: UnitState, then: Callable[[], None]) -> None:
        self._decisions += 1
        entry = (time, DECISION, unit.unit, self._decisions, 0, lambda _: then())
        heapq.heappush(self.run.queue, entry)

    def _decide_any(self, unit: UnitState, op: Operation) -> None:
        if op.value:
            return
        arrival, member = min(self._candidates(op))
        op.value = 1
        for link in op.link:
            self.any_waiters.pop(link.queue, None)
        self.choices.setdefault(unit.unit, []).append(member)
        self.note(unit, unit.now, max(unit.now, arrival))
        unit.now = max(unit.now, arrival)
        op.number = member
        self.run.ready.append(unit)

    def _arrived_any(self, queue: int) -> None:
        waiting = self.any_waiters.get(queue)
        if waiting is not None:
            self._offer_any(*waiting)

    # scalars, flags, meetings

    def read(self, unit: UnitState, op: Operation) -> bool:
        for time in self.hazards(unit, op.reads, ()):
            value = known(time)
            if value is None:
                self.run.resume_when(unit, time)
                return False
            unit.now = max(unit.now, value)
        self.note(unit, unit.now, unit.now)
        return True

    def signal(self, unit: UnitState, op: Operation) -> bool:
        def sent(time: int) -> None:
            for _ in range(op.value):
                insort(self.signals[op.key], time + op.delay_ps)
            self.run.last_ps = max(self.run.last_ps, time + op.delay_ps)
            waiting = self.flag_waiters.get(op.key)
            if waiting is not None:
                self._offer_wait(*waiting)

        gone = Pending()
        when([unit.touched], unit.now, gone.set)
        when([gone], 0, sent)
        self.note(unit, unit.now, short(gone))
        return True

    def raise_flag(self, unit: UnitState, operation: tuple[Any, ...]) -> bool:
        """A signal of a flag that nobody else raises, at a time that is not known yet."""
        _, (flag, delay), amount = operation

        def sent(time: int) -> None:
            self.run.flags[flag].extend([time + delay] * amount)
            self.run.wake(self.run.wait_flag, flag)

        when([unit.touched], unit.now, sent)
        return True

    def wait(self, unit: UnitState, op: Operation) -> bool:
        """Wait for a flag; when it is reached, the time queue decides (signals may still overtake)."""
        if op.delay_ps:
            unit.now = max(unit.now, op.delay_ps)
            self.note(unit, op.flow, unit.now)
            return True
        if op.value <= 0:
            self.note(unit, unit.now, unit.now)
            return True
        op.flow = unit.now
        self.flag_waiters[op.key] = (unit, op)
        self._offer_wait(unit, op)
        return False

    def _reached(self, op: Operation) -> int | None:
        arrived = self.signals[op.key]
        return arrived[op.value - 1] if len(arrived) >= op.value else None

    def _offer_wait(self, unit: UnitState, op: Operation) -> None:
        reached = self._reached(op)
        if reached is not None and not op.delay_ps:
            self._decide_at(reached, unit, lambda: self._decide_wait(unit, op))

    def _decide_wait(self, unit: UnitState, op: Operation) -> None:
        if not op.delay_ps:
            reached = self._reached(op)
            assert reached is not None
            op.delay_ps = max(1, reached)
            self.flag_waiters.pop(op.key, None)
            self.run.ready.append(unit)

    def wait_to_meet(self, unit: UnitState) -> bool:
        """A barrier before which accesses to shared storage have still to finish, at a time not known yet."""
        if known(unit.touched) is None:
            self.run.resume_when(unit, unit.touched)
            return False
        unit.touched = known(unit.touched)
        self.run.ready.append(unit)
        return False

    def meet(self, unit: UnitState, op: Operation) -> bool:
        meeting = self.meetings[op.key]
        if meeting.complete:
            unit.now = meeting.latest + op.delay_ps
            self.mark(unit, op, unit.now, unit.now)
            self.note(unit, op.flow, unit.now)
            return True
        if unit.unit in meeting.came:
            return False
        latest = unit.now
        for time in (unit.touched, *self.hazards(unit, op.reads, op.writes)):
            value = known(time)
            if value is None:
                self.run.resume_when(unit, time)
                return False
            if value > latest:
                latest = value
        op.flow = unit.now
        if meeting.comes(unit, latest, op.value):
            self.run.ready.extend(u for u in meeting.came.values() if u is not unit)
            return self.meet(unit, op)
        return False


def short(time: Pending) -> Time:
    """The number itself if it is known already."""
    return time if time.value is None else time.value
