"""Where the work of a search is done: processes of one's own, or any ``concurrent.futures.Executor``.

The default are forked processes, which know every function that this process knows, so that factories may be
closures. Other executors pickle the factory with what they use for it: joblib's loky and Dask
(``Client.get_executor()``) take closures too, the standard library's pools need functions of a module.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from time import sleep
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.limits import deadline
from megatile.core.stopped import StopWatch, first_done, kill_workers
from megatile.sim import TimeBudgetExceeded
from megatile.sim.compiled import compiled
from megatile.tuning.work import Outcome, Task, TuneError

AHEAD = 2
"""Pieces of work for each worker that are under way: one runs, one waits."""
_TASK: Task | None = None
"""In forked workers: what the search is."""


class Workers:
    """Somebody who does a task's work: an executor, or this process itself."""

    def __init__(self, task: Task, executor: Executor | None, count: int) -> None:
        self.task, self.executor, self.count = task, executor, count

    def run(self, step: str, pieces: Iterator[list[int]], take: Callable[[int, Any], None]) -> None:
        """Do pieces as they come; ``take(index, result)`` for each, in the order in which they end."""
        done = 0

        def keep(indices: list[int], results: list[Any]) -> None:
            nonlocal done
            for index, result in zip(indices, results, strict=True):
                take(index, result)
                done += 1

        try:
            self._run(step, pieces, keep)
        except (TimeBudgetExceeded, TimeoutError):
            raise TimeBudgetExceeded(
                f"{done} of {len(self.task.points)} points were {step}d within the time given",
                advice="give more time; with store= those that were measured are not timed again",
            ) from None

    def _run(
        self, step: str, pieces: Iterator[list[int]], keep: Callable[[list[int], list[Any]], None]
    ) -> None:
        if self.executor is None:
            for indices in pieces:
                keep(indices, _do(self.task, step, indices))
            return
        task = None if isinstance(self.executor, _Forked) else self.task
        waiting: dict[Future[list[Any]], list[int]] = {}
        stopped = StopWatch()
        try:
            more = True
            while more or waiting:
                while more and len(waiting) < AHEAD * self.count:
                    piece = next(pieces, None)
                    more = piece is not None
                    if piece:
                        with _lost_workers():
                            waiting[self.executor.submit(_do, task, step, piece)] = piece
                with _lost_workers():
                    done = first_done(self.executor, waiting, stopped, deadline())
                for future in sorted(done, key=lambda f: waiting[f]):
                    keep(waiting.pop(future), _result(future))
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def _lost_workers() -> Iterator[None]:
    """One error for workers that were killed, or that cannot be started."""
    try:
        yield
    except BrokenExecutor as problem:
        raise _killed(problem) from None
    except TimeoutError:  # the time of the search is over
        raise
    except OSError as problem:
        advice = "give fewer workers=, or workers=1"
        raise TuneError(f"workers cannot be started: {problem.strerror or problem}", advice=advice) from None


def _killed(problem: BrokenExecutor) -> TuneError:
    advice = "memory may be short: give fewer workers=; with the same store= it goes on where it was"
    said = "a worker was killed" if isinstance(problem, BrokenProcessPool) else str(problem)
    return TuneError(said, advice=advice)


def _do(task: Task | None, step: str, indices: list[int]) -> list[Any]:
    mine = task if task is not None else _TASK
    assert mine is not None
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of choices that are only tried
        for index in indices:
            try:
                found.append(getattr(mine, step)(index))
            except TimeBudgetExceeded:
                raise
            except MegatileError as problem:  # measured, after all was well: said with the point
                found.append(Outcome(index, why=str(problem).splitlines()[0]))
    return found


def _result(future: Future[list[Any]]) -> list[Any]:
    try:
        return future.result()
    except BrokenProcessPool as problem:
        raise _killed(problem) from None
    except (pickle.PicklingError, AttributeError) as problem:
        if "pickle" not in str(problem).lower() and "local object" not in str(problem):
            raise
        advice = "define the factory in a module, or use the default processes, joblib or Dask"
        raise TuneError(
            f"the executor cannot send the factory to its workers: {problem}", advice=advice
        ) from None


class _Forked(ProcessPoolExecutor):
    """Processes that know the task since they were forked."""


def begin_worker(parent: int) -> None:
    """Let a forked process end with its parent, which alone is ended by Ctrl-C at a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def workers_for(task: Task, executor: Executor | None, workers: int | None) -> Iterator[Workers]:
    """``executor`` None: ``workers`` forked processes (as many as cores), none where one is enough."""
    global _TASK
    if executor is not None:
        if not callable(getattr(executor, "submit", None)):
            advice = "give a concurrent.futures.Executor, such as Client.get_executor() of Dask"
            raise TuneError(f"executor={executor!r} is not an executor", advice=advice)
        yield Workers(
            task, executor, workers or getattr(executor, "_max_workers", None) or os.cpu_count() or 1
        )
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = workers if workers is not None else cores
    if count < 1:
        raise TuneError(f"workers must be at least 1, got {workers}", advice="use workers=1, or leave it out")
    count = min(count, len(task.points))
    if count == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield Workers(task, None, 1)
        return
    compiled()  # loaded once here, not by every worker
    context = multiprocessing.get_context("fork")
    with _lost_workers():
        pool = _Forked(count, mp_context=context, initializer=begin_worker, initargs=(os.getpid(),))
    before, _TASK = _TASK, task
    try:
        with _lost_workers():
            pool.submit(int).result()  # forked now, before bars and other threads are there
        yield Workers(task, pool, count)
    except BaseException:
        kill_workers(pool)
        raise
    finally:
        _TASK = before
        pool.shutdown(wait=True, cancel_futures=True)
