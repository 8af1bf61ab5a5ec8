"""When communication fails: find out which rank is gone, and say so on every rank."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megatile.attention.errors import AttentionError, PeerError

WATCH_SECONDS = 0.3
GRACE_SECONDS = 3.0  # how long ranks that noticed a failure wait for the others to report


def timeout_from_environment() -> timedelta | None:
    """``MEGATILE_ATTENTION_TIMEOUT`` in seconds, or None: the group's own timeout holds."""
    text = os.environ.get("MEGATILE_ATTENTION_TIMEOUT", "")
    try:
        return timedelta(seconds=float(text)) if text else None
    except (ValueError, OverflowError) as error:
        raise AttentionError(f"MEGATILE_ATTENTION_TIMEOUT is a number of seconds, got '{text}'") from error


def wait_for(work: Any, group: dist.ProcessGroup, peer: int | None, doing: str) -> None:
    """Wait for a communication; if it fails, raise :class:`PeerError` that names the rank at fault.

    ``peer`` is the rank of the group at the other end, None for a collective.
    """
    if work is None:
        return
    timeout = timeout_from_environment()
    try:
        with WATCHER.during(group):
            work.wait() if timeout is None else work.wait(timeout)
    except RuntimeError as error:
        raise explained(error, group, peer, doing) from error


class Watcher:
    """Answers for a process that waits and has noticed nothing itself, so that it is not taken for dead.

    A rank whose neighbours are alive does not see that another one is gone. The thread looks into the store
    only while the process waits for longer than a moment.
    """

    def __init__(self) -> None:
        self._waits: tuple[float, dist.ProcessGroup] | None = None
        self._process = 0

    @contextmanager
    def during(self, group: dist.ProcessGroup) -> Iterator[None]:
        """While the process waits for others of the group."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._process = os.getpid()
            self._start()
        self._waits = time.monotonic(), group
        try:
            yield
        finally:
            self._waits = None

    def _start(self) -> None:
        """Python aborts if it ends while a thread is inside the store: the thread is ended before."""
        end = threading.Event()
        thread = threading.Thread(target=self._watch, args=(end,), name="megatile attention", daemon=True)
        thread.start()

        def stop() -> None:
            end.set()
            thread.join(2 * GRACE_SECONDS)

        atexit.register(stop)

    def _watch(self, end: threading.Event) -> None:
        while not end.wait(WATCH_SECONDS):
            waits = self._waits
            if waits is not None and time.monotonic() - waits[0] > WATCH_SECONDS:
                with suppress(RuntimeError, dist.DistError):
                    self._answer(waits[1])

    def _answer(self, group: dist.ProcessGroup) -> None:
        store = _store(group)
        if store.check(["noticed"]) and self._waits is not None:
            store.set(f"alive/{dist.get_rank(group)}", "1")


WATCHER = Watcher()


def _store(group: dist.ProcessGroup) -> dist.Store:
    default = dist.distributed_c10d._get_default_store()
    return dist.PrefixStore(f"megatile/attention/{group.group_name}", default)


def explained(error: RuntimeError, group: dist.ProcessGroup, peer: int | None, doing: str) -> PeerError:
    """The error to raise instead of a transport's own."""
    culprits, how = _culprits(error, group, peer)
    if not culprits:
        return PeerError(f"{doing} failed, and no single rank could be named: {_first_line(error)}")
    names = ", ".join(str(rank) for rank in culprits)
    one = len(culprits) == 1
    return PeerError(
        f"{doing} failed: rank{'' if one else 's'} {names} {how}",
        ranks=tuple(culprits),
        advice=f"look at the output of rank{'' if one else 's'} {names}; the group cannot be used further",
    )


def _culprits(error: RuntimeError, group: dist.ProcessGroup, peer: int | None) -> tuple[list[int], str]:
    """Global ranks at fault: the known peer of a closed connection, or those that do not report."""
    late = "imed out" in str(error) or "timeout" in str(error).lower()
    try:
        store = _store(group)
        me, size = dist.get_rank(group), dist.get_world_size(group)
        store.set("noticed", "1")
        store.set(f"alive/{me}", "1")
        if peer is not None and not late and not store.check([f"alive/{peer}"]):
            _name_culprit(store, [peer])
        found = _awaited(store, range(size))
        store.set(f"told/{me}", "1")
        if dist.get_rank() == 0:
            # The store usually lives in this process: stay until the others have read it.
            _reported(store, "told", [rank for rank in range(size) if rank not in found])
    except (RuntimeError, dist.DistError):
        return [0], "ended (it kept the rendezvous store, which no longer answers)"
    how = "did not arrive in time" if late else "ended or lost its connection"
    return [dist.get_global_rank(group, rank) for rank in found], how


def _awaited(store: dist.Store, ranks: Iterable[int]) -> list[int]:
    """The ranks named by somebody, or those that do not report within the time of grace."""
    missing = _reported(store, "alive", ranks, until="culprit")
    if store.check(["culprit"]):
        return [int(rank) for rank in store.get("culprit").decode().split(",")]
    if missing:
        _name_culprit(store, missing)
    return missing


def _reported(store: dist.Store, what: str, ranks: Iterable[int], until: str | None = None) -> list[int]:
    """The ranks that do not report ``what`` within the time of grace; ends early once ``until`` is set."""
    deadline = time.monotonic() + GRACE_SECONDS
    missing = list(ranks)
    while missing and time.monotonic() < deadline and not (until and store.check([until])):
        missing = [rank for rank in missing if not store.check([f"{what}/{rank}"])]
        time.sleep(0.02)
    return missing


def _name_culprit(store: dist.Store, ranks: list[int]) -> None:
    """The first who finds out tells the others, who may only see the finder leave."""
    if not store.check(["culprit"]):
        store.set("culprit", ",".join(map(str, ranks)))


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
