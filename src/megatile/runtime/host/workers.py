"""Workers of ``torch.multiprocessing.spawn``: greenlets of one process that take turns in order of rank.

A worker runs until it waits, yields or ends. When all of them wait, simulated time passes until some work of
the devices ends; when there is none, that is a deadlock, and it is said who waits for what. The first failure
ends all workers; what they left behind is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os.path import basename
from pathlib import Path
from typing import Any, NamedTuple

import greenlet

from megatile.core.errors import MegatileError
from megatile.core.frames import frame_outside, raised_at

HERE = str(Path(__file__).parent)


class DistributedError(MegatileError, RuntimeError):
    """Ranks that do not agree, or wait for each other forever."""


class SpawnException(MegatileError, RuntimeError):
    """Workers that failed: ``errors`` has the exception of every rank that is to blame."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.errors = errors
        said: dict[str, list[int]] = {}
        for rank, error in sorted(errors.items()):
            place = None if isinstance(error, MegatileError) else raised_at(error)
            at = f" at {place}" if place else ""
            said.setdefault(f"{type(error).__name__}: {error}{at}", []).append(rank)
        each = "; ".join(f"{ranks_text(ranks)} raised {text}" for text, ranks in said.items())
        super().__init__(f"spawn failed on ranks {sorted(errors)}: {each}")


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``rank 3``, or ``ranks 0, 1, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class Stuck(NamedTuple):
    """A rank that waits, in words, and the ranks that it waits for."""

    rank: int
    text: str
    lacks: tuple[int, ...]


MAX_ERRORS_SHOWN = 4
"""Failed ranks whose errors a message quotes."""


class Worker:
    """One rank of a spawn. ``clock_ps`` is its own simulated time."""

    def __init__(self, rank: int, clock_ps: int) -> None:
        self.rank, self.clock_ps = rank, clock_ps
        self.device: int | None = None
        self.wait: tuple[Callable[[], bool], Callable[[], Stuck]] | None = None
        """Whether what it waits for is there, and that in words."""
        self.until_ps: int | None = None
        """When it goes on in any case."""
        self.gave_way = False
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
    """The workers of one spawn, and whose turn it is. When all of them wait, simulated time passes
    (``pass_time`` says whether there was anything to do)."""

    def __init__(self, pass_time: Callable[[int | None], bool]) -> None:
        self.pass_time = pass_time
        self.current: Worker | None = None
        self.all: list[Worker] = []

    @property
    def running(self) -> bool:
        return bool(self.all)

    def wait_until(
        self, ready: Callable[[], bool], what: Callable[[], Stuck], until_ps: int | None = None
    ) -> None:
        """Let the others, and time, go on until something holds (at most until some time); outside a worker
        it must hold already."""
        worker = self.current
        while not ready():
            if worker is None:
                raise DistributedError(
                    f"{what().text}, but there are no workers",
                    advice="call it in a function given to torch.multiprocessing.spawn",
                )
            worker.wait, worker.until_ps = (ready, what), until_ps
            self._hub.switch()
        if worker is not None:
            worker.wait = worker.until_ps = None

    def give_way(self) -> None:
        """Let all other workers have a turn; if these only wait, time passes."""
        if self.current is not None:
            self.current.wait, self.current.gave_way = None, True
            self._hub.switch()

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        count: int,
        clock_ps: int,
        unfinished: Callable[[], list[Stuck]] = list,
    ) -> list[Worker]:
        """Run ``fn(rank, *args)`` for all ranks until they end and nothing is ``unfinished``; the workers, or
        `SpawnException`."""
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
            left = unfinished()
            if left:
                raise self.blame(left)
            return self.all
        finally:
            self._end_all()
            self.current, self.all = None, []

    def _turns(self) -> None:
        while True:
            moved = False
            for worker in self.all:
                if not worker.alive or (worker.wait is not None and not worker.wait[0]()):
                    continue
                self.current, worker.gave_way = worker, False
                worker.greenlet.switch()
                self.current = None
                moved |= not worker.gave_way
                if isinstance(worker.error, KeyboardInterrupt):
                    raise worker.error  # the user's, not the rank's
                if worker.error is not None:
                    raise SpawnException({worker.rank: worker.error}) from worker.error
            waiting = [w for w in self.all if w.alive]
            if not waiting:
                return
            until = min((w.until_ps for w in waiting if w.until_ps is not None), default=None)
            stuck = not moved and not self.pass_time(until) and until is None
            if stuck and not any(w.gave_way for w in waiting):
                raise self.blame([w.wait[1]() for w in waiting if w.wait is not None])

    def blame(self, stuck: Sequence[Stuck]) -> SpawnException:
        """Return who is at fault when some ranks wait forever: those that have ended without doing what is
        waited for, unless they are more than those that wait."""
        ended = {w.rank: w.last for w in self.all if not w.alive}
        lacking = sorted({r for s in stuck for r in s.lacks if r in ended or r >= len(self.all)})
        waiting = sorted({s.rank for s in stuck})
        left = [f"{ranks_text([r])} has ended (its last was {ended[r]})" for r in lacking if r in ended]
        left += [f"there is no worker of {ranks_text([r])}" for r in lacking if r not in ended]
        parts = [*_few([s.text for s in stuck]), *_few(left)]
        error = DistributedError("; ".join([f"deadlock: {parts[0]}", *parts[1:]]))
        return SpawnException(dict.fromkeys(lacking if 0 < len(lacking) <= len(waiting) else waiting, error))

    def _end_all(self) -> None:
        """Siblings of a failed worker get SystemExit; what they do about it is not recorded."""
        for worker in self.all:
            if worker.alive and worker.greenlet:
                self.current = worker
                worker.error = None
                worker.greenlet.throw(SystemExit)
                if worker.alive:  # it caught it and waits again
                    worker.greenlet.throw(greenlet.GreenletExit)


def _few(texts: Sequence[str]) -> list[str]:
    shown = list(texts[:MAX_ERRORS_SHOWN])
    return [*shown, f"and {len(texts) - MAX_ERRORS_SHOWN} more"] if len(texts) > MAX_ERRORS_SHOWN else shown


def call_site() -> str:
    """Return ``file:line`` of the nearest caller that is not the host runtime itself."""
    frame = frame_outside(HERE)
    return f"{basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else "?"
