"""Which ranks are still there: processes that wait answer for themselves, and tell each other who did not.

All of it goes through the rendezvous store, from a thread, as the process itself is inside a wait. Shortly
before a wait has lasted as long as it may, its thread calls the roll: every process that waits too answers
within a fraction of the time of grace. So the ranks at fault are known when the wait ends, not later.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from megatile.core.cached import cached

WATCH_SECONDS = 0.3
"""Time between two looks at the other ranks."""
GRACE_SECONDS = 3.0  # how long ranks have to answer
TIMEOUT_VARIABLE = "MEGATILE_ATTENTION_TIMEOUT"
NOTICED = 10**9  # more than there are calls


def timeout_from_environment() -> timedelta | None:
    """Return the variable's seconds. None, also if it makes no sense: the group's own timeout holds."""
    return _timeout(os.environ.get(TIMEOUT_VARIABLE))


def _timeout(seconds: str | None) -> timedelta | None:
    if not seconds:
        return None
    try:
        found = timedelta(seconds=float(seconds))
    except (ValueError, OverflowError):
        return None
    return found if found > timedelta(0) else None


_BACKENDS: WeakKeyDictionary[dist.ProcessGroup, Any] = WeakKeyDictionary()


def _backend(group: dist.ProcessGroup) -> Any:
    """That of GPUs, where there is one."""
    known = isinstance(group, dist.ProcessGroup)  # not what stands in for one
    if known and group in _BACKENDS:
        return _BACKENDS[group]
    for device in ("cuda", "cpu"):
        with suppress(RuntimeError, AttributeError):
            found = group._get_backend(torch.device(device))
            if known:
                _BACKENDS[group] = found
            return found
    return None


@dataclass(frozen=True)
class Limit:
    """How long a communication may take, from ``begin`` on (seconds of a monotonic clock)."""

    begin: float
    seconds: float | None
    source: str = "the group's timeout"
    bounded: bool = True  # whether waits are given a timeout: on GPUs that would hold up the process

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Limit:
        asked = os.environ.get(TIMEOUT_VARIABLE)
        backend = _backend(group)
        found = getattr(getattr(backend, "options", None), "_timeout", None)
        return cls(time.monotonic(), *_figures(asked, found, type(backend).__name__))

    def again(self, begin: float | None = None) -> Limit:
        """Return the same limit for a communication that begins now, or began before."""
        begin = time.monotonic() if begin is None else begin
        return Limit(begin, self.seconds, self.source, self.bounded)

    @property
    def grace(self) -> float:
        """How long before the end the roll is called; also how long ranks have to answer at other times."""
        return GRACE_SECONDS if self.seconds is None else min(GRACE_SECONDS, self.seconds / 3)

    def left(self, part: float = 0.0) -> float:
        """Return seconds until ``part`` of the time of grace before the end."""
        if self.seconds is None:
            return float("inf")
        return self.begin + self.seconds - part * self.grace - time.monotonic()

    @property
    def end(self) -> float:
        """Return when a wait is given up, just before the end."""
        return float("inf") if self.seconds is None else self.begin + self.seconds - GIVE_UP * self.grace

    def wait(self, work: Any) -> None:
        """Wait for a communication until just before the end."""
        if not self.bounded or self.seconds is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=max(0.001, self.end - time.monotonic())))


@cached(64)
def _figures(asked: str | None, groups: Any, backend: str) -> tuple[float | None, str, bool]:
    """Return the fields of a `Limit` but its beginning, from the environment's and the group's timeout."""
    own = _timeout(asked)
    groups = groups if isinstance(groups, timedelta) else None
    bounded = own is not None or backend == "ProcessGroupGloo"
    if own is not None and (groups is None or own <= groups):
        return own.total_seconds(), TIMEOUT_VARIABLE, bounded
    return None if groups is None else groups.total_seconds(), "the group's timeout", bounded


# Parts of the time of grace that are left when the missing ranks are named, and when a wait is given up.
DECIDE, GIVE_UP = 0.25, 0.125


class Verdict(NamedTuple):
    """The ranks of a group at fault: they came too late, or they are gone."""

    ranks: list[int]
    late: bool


class Roll:
    """What the ranks of a group tell each other through the store."""

    def __init__(self, group: dist.ProcessGroup):
        default = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore(f"megatile/{group.group_name}", default)
        self.me, self.size = dist.get_rank(group), dist.get_world_size(group)

    def call(self) -> int:
        """Ask all ranks; the number of the call."""
        number = self.store.add("calls", 1)
        self._say(number)
        return number

    def answer(self) -> None:
        """To all calls so far."""
        number = self.store.add("calls", 0)
        if number:
            self._say(number)

    def _say(self, number: int) -> None:
        self.store.set(f"alive/{self.me}", str(number))

    def noticed(self) -> None:
        """This rank has seen the failure itself: it is never missing."""
        self._say(NOTICED)

    def answered(self, rank: int) -> int:
        """Return the last call that a rank has answered, 0 for none."""
        return self.store.add(f"alive/{rank}", 0)

    def missing(self, number: int) -> list[int]:
        """Return the ranks that have not answered a call."""
        return [rank for rank in range(self.size) if self.answered(rank) < number]

    def name(self, verdict: Verdict) -> Verdict:
        """Say who is at fault; who does so first is right, as others may only see the finder leave."""
        named = self.store.compare_set("verdict", "", json.dumps(verdict))
        self.store.set(f"informed/{self.me}", "1")
        return Verdict(*json.loads(named))

    def named(self) -> Verdict | None:
        """Return who was said to be at fault."""
        if not self.store.check(["verdict"]):
            return None
        found = json.loads(self.store.get("verdict"))
        self.store.set(f"informed/{self.me}", "1")
        return Verdict(*found)

    def forget(self) -> None:
        """No rank was at fault after all."""
        self.store.delete_key("verdict")

    def uninformed(self, verdict: Verdict) -> list[int]:
        """Return the ranks that have not read who is at fault."""
        others = [rank for rank in range(self.size) if rank not in verdict.ranks]
        return [rank for rank in others if not self.store.check([f"informed/{rank}"])]


@dataclass
class GroupWait:
    """A process waits for others of a group. ``verdict``: who is at fault (none: all wait), if known."""

    group: dist.ProcessGroup
    limit: Limit
    since: float = field(default_factory=time.monotonic)
    number: int = 0
    verdict: Verdict | None = None
    named: bool = False
    failed: bool = False

    def poll(self) -> None:
        """What the thread does from time to time."""
        roll = Roll(self.group)
        if not self.failed:
            roll.answer()
        self.verdict = roll.named() or self.verdict
        if self.verdict is not None:
            return
        if not self.number and self.limit.left(1.0) <= 0:
            self.number = roll.call()
        elif self.number and self.limit.left(DECIDE) <= 0:
            verdict = Verdict(roll.missing(self.number), late=True)
            self.named = bool(verdict.ranks)
            self.verdict = roll.name(verdict) if verdict.ranks else verdict


class Watcher:
    """The thread of a process that answers while it waits, and calls the roll before it gives up.

    A rank whose neighbours are alive does not see that another one is gone. The store is only looked into
    while the process waits for longer than a moment.
    """

    def __init__(self) -> None:
        self._wait: GroupWait | None = None
        self._looking: float | None = None
        self._process = 0

    def during(self, wait: GroupWait) -> Watched:
        """While the process waits for others of the group."""
        return Watched(self, wait)

    def begin(self, wait: GroupWait) -> None:
        if self._process != os.getpid():  # threads do not survive a fork
            self._process, self._looking = os.getpid(), None
            self._start()
        self._wait = wait

    def end(self, wait: GroupWait, failed: bool) -> None:
        wait.failed = wait.failed or failed
        self._wait = None
        if wait.named and not failed:
            Roll(wait.group).forget()

    @property
    def waiting_for_store(self) -> float:
        """For how many seconds the store has not answered."""
        looking = self._looking
        return 0.0 if looking is None else time.monotonic() - looking

    def _start(self) -> None:
        """Python aborts if it ends while a thread is inside the store: the thread is ended before."""
        end = threading.Event()
        thread = threading.Thread(target=self._watch, args=(end,), name="megatile attention", daemon=True)
        thread.start()

        def stop() -> None:
            end.set()
            thread.join(max(0.0, 2 * GRACE_SECONDS - self.waiting_for_store))

        atexit.register(stop)

    def _watch(self, end: threading.Event) -> None:
        while not end.wait(self._period()):
            wait = self._wait
            if wait is not None and time.monotonic() - wait.since > self._period():
                self._looking = time.monotonic()
                with suppress(RuntimeError, dist.DistError):
                    wait.poll()
                    if wait.named and self._wait is not wait and not wait.failed:
                        Roll(wait.group).forget()
                self._looking = None

    def _period(self) -> float:
        wait = self._wait
        return WATCH_SECONDS if wait is None else min(WATCH_SECONDS, wait.limit.grace / 8)


class Watched:
    """The context of a wait; a generator's would take longer than some waits."""

    def __init__(self, watcher: Watcher, wait: GroupWait):
        self._watcher, self._wait = watcher, wait

    def __enter__(self) -> None:
        self._watcher.begin(self._wait)

    def __exit__(self, kind: object, *_: object) -> None:
        self._watcher.end(self._wait, kind is not None)


WATCHER = Watcher()
