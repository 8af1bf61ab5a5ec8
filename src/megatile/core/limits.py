"""Limits of long work: a signal or a clock ends it where its state is consistent, too little memory with a
sentence.

with time_limit(5):                    # wall-clock seconds; runs in slices stop after them
    simulate(plan, machine="ahbm")

with held_signals() as signals:        # handlers run in `deliver`, not in the middle of a slice
    while run_slice():
        signals.deliver()

with enough_memory("plan 'ring' of 850000 units"):
    simulate(plan, machine="ahbm")
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from signal import SIGINT, SIGTERM
from time import monotonic
from typing import Any

try:  # the functions below those of `signal`, which look up every handler in an enumeration
    from _signal import getsignal, signal as set_handler
except ImportError:
    from signal import getsignal, signal as set_handler

from megatile.core.errors import MegatileError

HELD = (SIGINT, SIGTERM)
_DEADLINE: ContextVar[float | None] = ContextVar("deadline", default=None)


class SecondsError(MegatileError, ValueError):
    """A number of seconds that cannot be one."""


class TimeBudgetExceeded(MegatileError, ValueError):
    """Something has not ended within the time given; a launch of a session can be waited for again."""


class OutOfMemory(MegatileError, MemoryError):
    """Something needs more memory than this process can have."""


class HeldSignals:
    """Signals that have come and whose handlers have not run yet."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.handlers: dict[int, Any] = {}
        """The handlers that are called for them, by signal."""

    def deliver(self) -> None:
        """Call the handlers of the signals that have come; that of SIGINT raises KeyboardInterrupt."""
        while self.came:
            number = self.came.pop(0)
            self.handlers[number](number, None)

    def hold(self) -> None:
        """Take the place of Python's handlers; those that the system handles end the process at once."""
        for number in HELD:
            handler = getsignal(number)
            if callable(handler):
                self.handlers[number] = handler
                set_handler(number, self._come)

    def _come(self, number: int, _: Any) -> None:
        self.came.append(number)

    def release(self) -> None:
        for number, handler in self.handlers.items():
            set_handler(number, handler)


_NOTHING_HELD = HeldSignals()
_current: HeldSignals | None = None


@contextmanager
def held_signals() -> Iterator[HeldSignals]:
    """Keep the handlers of SIGINT and SIGTERM from running until `HeldSignals.deliver`, or the end.

    Other threads than the main one have no handlers, so that there is nothing to keep.
    """
    global _current
    if threading.current_thread() is not threading.main_thread():
        yield _NOTHING_HELD
    elif _current is not None:
        yield _current
    else:
        _current = held = HeldSignals()
        held.hold()
        try:
            yield held
        finally:
            held.release()
            _current = None
            held.deliver()


def deadline() -> float | None:
    """Return when the enclosing `time_limit` ends, in the time of `time.monotonic`; None without one."""
    return _DEADLINE.get()


@contextmanager
def time_limit(seconds: float | None, name: str = "max_seconds") -> Iterator[None]:
    """Let work that runs in slices stop so many seconds from now, or when an enclosing limit ends."""
    if seconds is None:
        yield
        return
    ends, outer = monotonic() + checked_seconds(seconds, name), _DEADLINE.get()
    token = _DEADLINE.set(ends if outer is None else min(ends, outer))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def checked_seconds(value: Any, name: str, error: type[MegatileError] = SecondsError) -> float:
    """Return a time that is not negative, or raise an error that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise error(f"{name} must be a non-negative number of seconds, got {value!r}")
    return float(min(value, sys.maxsize))


@contextmanager
def enough_memory(what: str, advice: str = "use fewer units, or raise the memory limit") -> Iterator[None]:
    """Turn a MemoryError into one sentence about what needs the memory."""
    try:
        yield
    except OutOfMemory:
        raise
    except MemoryError:
        raise OutOfMemory(f"{what} needs more memory than this process can have", advice=advice) from None
