"""Fork ranks, watch them, bring back what they return, and name the one at fault."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from megatile.collectives.job import read_bytes
from megatile.core.errors import MegatileError
from megatile.runtime.errors import LaunchError, PeerError, check_timeout, failure, how_ended, named
from megatile.runtime.shared.world import World

STOPPED_SECONDS = 3.0
"""How long a rank may be stopped (SIGSTOP) before it counts as lost."""
END_SECONDS = 1.0
"""Time that the other processes get to report after a failure."""
_POLL_SECONDS = 0.01
"""Time between two looks at the processes."""
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux: a rank ends when the process that forked it does."""


@dataclass
class _Rank:
    pid: int
    pipe: int
    said: bytearray = field(default_factory=bytearray)
    silent: bool = False
    code: int | None = None
    stopped: float | None = None


def run(
    work: Callable[..., Any],
    processes: int,
    *,
    heap: int | str = "64 MiB",
    args: Sequence[Any] = (),
    timeout: float = 120.0,
    started: Callable[[list[int]], None] | None = None,
    world: World | None = None,
    watch: Callable[[], None] = lambda: None,
) -> list[Any]:
    """``work(world, *args)`` in ``processes`` forked processes; what each returned, in the order of ranks.

    ``heap`` is the symmetric memory of each rank. ``timeout`` (seconds) bounds the whole run; ``started`` is
    called with the process ids, ``watch`` again and again. A rank that fails raises :class:`LaunchError`
    here, with ``units`` at fault.
    """
    if not hasattr(os, "fork"):
        raise LaunchError("processes that share memory need a system that can fork")
    check_timeout(timeout)
    world = world or World.make(processes, read_bytes(heap))
    ranks: list[_Rank] = []
    try:
        for number in range(processes):
            ranks.append(_fork(world, number, work, args))
        if started is not None:
            started([rank.pid for rank in ranks])
        _watch(world, ranks, timeout, watch)
    finally:
        _end(ranks)
    return [json.loads(bytes(rank.said))["value"] for rank in ranks]


def _fork(world: World, number: int, work: Callable[..., Any], args: Sequence[Any]) -> _Rank:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    ends: tuple[int, ...] = ()
    try:
        receive, send = ends = os.pipe()
        pid = os.fork()
    except OSError as problem:
        for end in ends:
            os.close(end)
        raise LaunchError(
            f"rank {number} of {world.size} cannot be started ({problem})", advice="use fewer processes"
        ) from None
    if pid:
        os.close(send)
        os.set_blocking(receive, False)
        return _Rank(pid, receive)
    code = 1
    try:
        os.close(receive)
        _die_with(parent)
        world.rank = number
        report = _report(world, work, args)
        code = 0 if "value" in report else 1
        os.set_blocking(send, True)
        data = json.dumps(report).encode()
        while data:
            data = data[os.write(send, data) :]
    except BrokenPipeError:
        pass
    finally:
        os._exit(code)


def _die_with(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _report(world: World, work: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return what a rank says at its end: its value, or its error and whether it is its own."""
    try:
        value = work(world, *args)
        json.dumps(value)
        return {"value": value}
    except PeerError as problem:
        return {"text": str(problem), "own": False}
    except MegatileError as problem:
        world.lose(world.rank)
        return {"text": str(problem), "own": True}
    except BaseException as problem:
        world.lose(world.rank)
        last = traceback.extract_tb(problem.__traceback__)[-1]
        what = f"{type(problem).__name__}: {problem} ({last.filename}:{last.lineno})"
        return {"text": what, "own": True}


def _watch(world: World, ranks: list[_Rank], timeout: float, watch: Callable[[], None]) -> None:
    end = time.monotonic() + timeout
    while any(rank.code is None for rank in ranks):
        watch()
        _listen(ranks)
        for number, rank in enumerate(ranks):
            _poll(rank)
            failed = rank.code not in (None, 0) and not rank.said
            if failed or (rank.stopped is not None and time.monotonic() - rank.stopped > STOPPED_SECONDS):
                world.lose(number)
                _settle(ranks, number)
        late = [n for n, rank in enumerate(ranks) if rank.code is None]
        if any(rank.code for rank in ranks):
            _settle(ranks, None)
        elif late and time.monotonic() > end:
            raise LaunchError(
                f"the work did not finish within {timeout:g} s: {named('rank', late)} still at work",
                units=tuple(late),
                advice="give a larger timeout=",
            )
    if any(rank.code for rank in ranks):
        _settle(ranks, None)


def _listen(ranks: list[_Rank]) -> None:
    """Take what ranks say, waiting a moment for it."""
    waiting = [rank.pipe for rank in ranks if rank.code is None and not rank.silent]
    ready = select.select(waiting, [], [], _POLL_SECONDS if waiting else _POLL_SECONDS / 10)[0]
    for rank in ranks:
        if rank.pipe in ready:
            _take(rank)


def _take(rank: _Rank) -> None:
    with contextlib.suppress(BlockingIOError):
        while block := os.read(rank.pipe, 1 << 16):
            rank.said += block
        rank.silent = True


def _poll(rank: _Rank) -> None:
    """Whether a rank has ended or stopped."""
    if rank.code is not None:
        return
    pid, state = os.waitpid(rank.pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
    if not pid:
        return
    if os.WIFSTOPPED(state):
        rank.stopped = time.monotonic()
    elif os.WIFCONTINUED(state):
        rank.stopped = None
    else:
        rank.code = os.waitstatus_to_exitcode(state)
        _take(rank)


def _settle(ranks: list[_Rank], lost: int | None) -> None:
    """Something went wrong: let the others report, then raise the error that names who is at fault."""
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until and any(r.code is None for n, r in enumerate(ranks) if n != lost):
        _listen(ranks)
        for rank in ranks:
            _poll(rank)
    reports = {n: json.loads(bytes(r.said)) for n, r in enumerate(ranks) if r.code and r.said}
    dead = [n for n, r in enumerate(ranks) if r.code and not r.said]
    if lost is not None and ranks[lost].code is None:
        raise LaunchError(f"rank {lost} was stopped", units=(lost,), advice="let it run, or start again")
    raise failure("rank", reports, dead, lambda n: how_ended(ranks[n].code))


def _end(ranks: list[_Rank]) -> None:
    """Nothing is left behind: no process, no pipe."""
    for rank in ranks:
        if rank.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(rank.pid, 0)
        os.close(rank.pipe)
