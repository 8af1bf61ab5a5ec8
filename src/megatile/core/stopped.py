"""Find child processes that a signal has stopped: they are alive and never answer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any

STOPPED_SECONDS = 3.0
"""How long a process may be stopped (SIGSTOP) before it counts as lost."""
LOOK_SECONDS = 0.5
"""Time between two looks at workers, while all of them work."""


class StopWatch:
    """Which children have been stopped for `STOPPED_SECONDS`, as seen by the calls of ``lost``."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def lost(self, children: Iterable[int]) -> list[int]:
        """Return those among these children (process ids) that have been stopped for too long."""
        now = time.monotonic()
        self._since = {pid: self._since.get(pid, now) for pid in children if _is_stopped(pid)}
        return [pid for pid, since in self._since.items() if now - since > STOPPED_SECONDS]


def _is_stopped(child: int) -> bool:
    if not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False


def first_done(
    executor: Executor, waiting: Collection[Future[Any]], stopped: StopWatch, end: float | None = None
) -> set[Future[Any]]:
    """Wait until a future is done, or until ``end`` (`TimeoutError`).

    If a worker of a process pool is stopped meanwhile, all are killed and the pool counts as broken;
    ``stopped`` is the same for all calls for a pool, as the other workers go on.
    """
    while waiting:
        processes = _workers(executor)
        left = None if end is None else max(0.0, end - time.monotonic())
        look = left if not processes else LOOK_SECONDS if left is None else min(LOOK_SECONDS, left)
        done, _ = wait(waiting, look, return_when=FIRST_COMPLETED)
        if (lost := stopped.lost(processes)) and len(done) < len(waiting):
            kill_workers(executor)
            raise BrokenExecutor(f"a worker (process {lost[0]}) was stopped")
        if done:
            return done
        if left == 0:
            raise TimeoutError
    return set()


def kill_workers(executor: Executor) -> None:
    """Kill the workers of a process pool, also those that are stopped: half a pool waits for them."""
    for process in _workers(executor):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _workers(executor: Executor) -> dict[int, Any]:
    return dict(getattr(executor, "_processes", None) or {})
