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
