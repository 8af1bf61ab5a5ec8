"""Workers of ``torch.multiprocessing.spawn``: greenlets of one process that take turns in order of rank.

A worker runs until it waits for others, yields or ends. When nobody can go on, that is a deadlock, and it is
said who waits for what. The first failure ends all workers; what they left behind is cleared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import greenlet

from megatile.core.errors import MegatileError

HERE = str(Path(__file__).parent)


class DistributedError(MegatileError, RuntimeError):
    """Ranks that do not agree, or wait for each other for ever."""


class SpawnException(MegatileError, RuntimeError):
    """Workers that failed: ``errors`` has the exception of every rank that is to blame."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.errors = errors
        each = "; ".join(f"rank {r} raised {type(e).__name__}: {e}" for r, e in sorted(errors.items()))
        super().__init__(f"spawn failed on ranks {sorted(errors)}: {each}")


@dataclass
class Wait:
    """What a worker waits for, in words, and whether it is there."""

    ready: Callable[[], bool]
    what: Callable[[], str]


class Worker:
    """One rank of a spawn. ``clock_ps`` is its own simulated time."""

    def __init__(self, rank: int, clock_ps: int) -> None:
        self.rank, self.clock_ps = rank, clock_ps
        self.device: int | None = None
        self.wait: Wait | None = None
        self.error: BaseException | None = None
        self.last = "nothing"
        """Its last collective, with the line."""
        self.greenlet: Any = None

    def start(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        def body() -> None:
            try:
                fn(self.rank, *args)
            except greenlet.GreenletExit:
                raise
            except SystemExit as left:
                if left.code not in (None, 0):
                    self.error = left
            except BaseException as error:
                self.error = error

        self.greenlet = greenlet.greenlet(body)

    @property
    def alive(self) -> bool:
        return not self.greenlet.dead


class Workers:
    """The workers of one spawn, and whose turn it is."""

    def __init__(self) -> None:
        self.current: Worker | None = None
        self.all: list[Worker] = []

    @property
    def running(self) -> bool:
        return bool(self.all)

    def wait_until(self, ready: Callable[[], bool], what: Callable[[], str]) -> None:
        """Let the others go on until something holds; outside a worker it must hold already."""
        worker = self.current
        while not ready():
            if worker is None:
                raise DistributedError(
                    f"{what()}, but there are no workers",
                    advice="call it in a function given to torch.multiprocessing.spawn",
                )
            worker.wait = Wait(ready, what)
            self._hub.switch()
        if worker is not None:
            worker.wait = None

    def give_way(self) -> None:
        """Let all other workers have a turn."""
        if self.current is not None:
            self.current.wait = None
            self._hub.switch()

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], count: int, clock_ps: int) -> list[Worker]:
        """Run ``fn(rank, *args)`` for all ranks until they end; the workers, or `SpawnException`."""
        if self.running:
            raise DistributedError(
                "spawn inside a worker is refused",
                advice="spawn all ranks at once, and use new_group for parts",
            )
        self._hub = greenlet.getcurrent()
        self.all = [Worker(rank, clock_ps) for rank in range(count)]
        for worker in self.all:
            worker.start(fn, args)
        try:
            self._turns()
            return self.all
        finally:
            self._end_all()
            self.current, self.all = None, []

    def _turns(self) -> None:
        while True:
            moved = False
            for worker in self.all:
                if not worker.alive or (worker.wait is not None and not worker.wait.ready()):
                    continue
                moved = True
                self.current = worker
                worker.greenlet.switch()
                self.current = None
                if worker.error is not None:
                    raise SpawnException({worker.rank: worker.error}) from worker.error
            waiting = [w for w in self.all if w.alive]
            if not waiting:
                return
            if not moved:
                raise SpawnException({w.rank: self._deadlock(w) for w in waiting})

    def _deadlock(self, worker: Worker) -> DistributedError:
        ended = [f"rank {w.rank} has ended (its last was {w.last})" for w in self.all if not w.alive]
        assert worker.wait is not None
        return DistributedError("; ".join([f"deadlock: {worker.wait.what()}", *ended]))

    def _end_all(self) -> None:
        """Siblings of a failed worker get SystemExit; what they do about it is not recorded."""
        for worker in self.all:
            if worker.alive and worker.greenlet:
                self.current = worker
                worker.error = None
                worker.greenlet.throw(SystemExit)
                if worker.alive:  # it caught it and waits again
                    worker.greenlet.throw(greenlet.GreenletExit)


def call_site() -> str:
    """``file:line`` of the nearest caller that is not the host runtime itself."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "?"
