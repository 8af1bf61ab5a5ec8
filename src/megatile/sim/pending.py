"""Times that are not known yet, because a transfer still waits for its turn on a shared resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Time = Any  # an int, or a Pending


class Pending:
    """A time that will be known later. Comparing it raises TypeError: whoever can wait asks `value`."""

    __slots__ = ("value", "waiters")

    def __init__(self) -> None:
        self.value: int | None = None
        self.waiters: list[Callable[[], None]] = []

    def set(self, value: int) -> None:
        self.value = value
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()


def known(time: Time) -> int | None:
    """The time if it is known."""
    return time if type(time) is int else time.value


def when(times: Iterable[Time], least: int, then: Callable[[int], None]) -> None:
    """Call ``then`` with the latest of ``times`` (at least ``least``) as soon as all are known."""
    latest = least
    unknown: list[Pending] = []
    for time in times:
        value = known(time)
        if value is None:
            unknown.append(time)
        elif value > latest:
            latest = value
    if not unknown:
        then(latest)
        return
    left = len(unknown)

    def arrived() -> None:
        nonlocal left
        left -= 1
        if not left:
            then(max(latest, *(p.value for p in unknown if p.value is not None)))

    for pending in unknown:
        pending.waiters.append(arrived)


def later(a: Time, b: Time) -> Time:
    """The later of two times, known or not."""
    x, y = known(a), known(b)
    if x is not None and y is not None:
        return x if x > y else y
    result = Pending()
    when((a, b), 0, result.set)
    return known(result) if result.value is not None else result


class Job(Pending):
    """The end of a command that begins when all it waits for is known and then takes ``busy_ps``.

    Jobs of one engine of a unit end in the order in which they were made.
    """

    __slots__ = ("_busy_ps", "_need", "_times", "engine", "start")

    def __init__(self, engine: int, busy_ps: int) -> None:
        self.value = None
        self.waiters = []
        self.engine = engine
        self.start = 0
        self._busy_ps = busy_ps

    def begin_after(self, unknown: list[Pending], least: int) -> None:
        """Begin when these are known, not before ``least``."""
        self.start = least
        if unknown:
            self._times = unknown
            self._need = len(unknown)
            for time in unknown:
                time.waiters.append(self._known)
        else:
            self.set(least + self._busy_ps)

    def _known(self) -> None:
        self._need -= 1
        if not self._need:
            start = self.start
            for time in self._times:
                if time.value > start:  # type: ignore[operator]
                    start = time.value  # type: ignore[assignment]
            self.start = start
            self._times = []
            self.set(start + self._busy_ps)


class Begin:
    """The start of a `Job`, for a record: known when the job is."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.job = job

    @property
    def value(self) -> int | None:
        return None if self.job.value is None else self.job.start
