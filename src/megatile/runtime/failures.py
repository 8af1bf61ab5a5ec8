"""Find out which rank is gone when communication fails, and report it on every rank."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from megatile.runtime.errors import PeerError
from megatile.runtime.rank_liveness import GIVE_UP, WATCHER, GroupWait, Limit, Roll, Verdict

STORE_SILENT = "does not answer (it keeps the rendezvous store)"
STORE_GONE = "ended (it kept the rendezvous store, which no longer answers)"


def wait_for(
    work: Any, group: dist.ProcessGroup, peer: int | None, doing: str, limit: Limit | None = None
) -> None:
    """Wait for a communication; if it fails, raise :class:`PeerError` that names the rank at fault.

    ``peer`` is the rank of the group at the other end, None for a collective.
    """
    if work is not None:
        _wait_for([(work, peer)], GroupWait(group, limit or Limit.of(group)), doing)


def wait_for_all(
    works: Sequence[tuple[Any, int | None]],
    group: dist.ProcessGroup,
    doing: str,
    started: float | None = None,
    limit: Limit | None = None,
) -> None:
    """Wait for several communications, each with its peer, that share one timeout (``limit``: known before).

    A collective's own clock runs since it was ``started``, that of messages only while they are awaited.
    """
    collective = started is not None and None in [peer for _, peer in works]
    limit = (limit or Limit.of(group)).again(started if collective else None)
    _wait_for(works, GroupWait(group, limit), doing)


def _wait_for(works: Sequence[tuple[Any, int | None]], wait: GroupWait, doing: str) -> None:
    peer: int | None = None
    try:
        with WATCHER.during(wait):
            for work, other in works:
                peer = other
                wait.limit.wait(work)
    except RuntimeError as error:
        raise explained(error, wait.group, peer, doing, wait) from error


def explained(
    error: RuntimeError, group: dist.ProcessGroup, peer: int | None, doing: str, wait: GroupWait | None = None
) -> PeerError:
    """Return the error to raise instead of a transport's own."""
    wait = wait or GroupWait(group, Limit.of(group))
    late = "imed out" in str(error) or "timeout" in str(error).lower()
    culprits, how = _culprits(late, peer, wait)
    if not culprits:
        found = f"all ranks wait for each other{_within(wait.limit)}" if late else _first_line(error)
        return PeerError(f"{doing} failed, and no single rank could be named: {found}")
    names = ", ".join(str(rank) for rank in culprits)
    one = len(culprits) == 1
    return PeerError(
        f"{doing} failed: rank{'' if one else 's'} {names} {how}",
        ranks=tuple(culprits),
        advice=f"look at the output of rank{'' if one else 's'} {names}; the group cannot be used further",
    )


def _culprits(late: bool, peer: int | None, wait: GroupWait) -> tuple[list[int], str]:
    """Return global ranks at fault: the known peer of a closed connection, or those that do not answer."""
    if WATCHER.waiting_for_store > wait.limit.grace / 2:
        return [0], STORE_SILENT
    answers: queue.SimpleQueue[Verdict | None] = queue.SimpleQueue()
    # A store whose process was stopped never answers: it is asked by a thread that can be left alone.
    threading.Thread(
        target=lambda: answers.put(_asked(late, peer, wait)), name="megatile roll call", daemon=True
    ).start()
    try:
        found = answers.get(timeout=wait.limit.grace * (GIVE_UP if late and wait.verdict else 2.25))
    except queue.Empty:
        found = wait.verdict
        if found is None:
            return [0], STORE_SILENT
    if found is None:
        return [0], STORE_GONE
    how = f"did not arrive in time{_within(wait.limit)}" if found.late else "ended or lost its connection"
    return [dist.get_global_rank(wait.group, rank) for rank in found.ranks], how


def _asked(late: bool, peer: int | None, wait: GroupWait) -> Verdict | None:
    """Return who is at fault, as all ranks see it; None if that is not known and the store is gone."""
    try:
        roll = Roll(wait.group)
        roll.noticed()
        found = roll.named() or wait.verdict
        if found is None and peer is not None and not late and not roll.answered(peer):
            found = roll.name(Verdict([peer], late))
        known, found = found is not None, found or _called(roll, wait.limit.grace, late)
        if dist.get_rank() == 0 and found.ranks:
            # The store usually lives in this process: stay until the others have read it.
            end = time.monotonic() + wait.limit.grace * (GIVE_UP if known and late else 1.0)
            while roll.uninformed(found) and time.monotonic() < end:
                time.sleep(0.02)
        return found
    except (RuntimeError, dist.DistError):
        return wait.verdict


def _called(roll: Roll, grace: float, late: bool) -> Verdict:
    """Return the ranks that another rank named, or those that do not answer within the time of grace."""
    number = roll.call()
    end = time.monotonic() + grace
    missing = roll.missing(number)
    while missing and time.monotonic() < end and not roll.store.check(["verdict"]):
        time.sleep(0.02)
        roll.noticed()
        missing = roll.missing(number)
    verdict = Verdict(missing, late)
    return roll.named() or (roll.name(verdict) if missing else verdict)


def _within(limit: Limit) -> str:
    return "" if limit.seconds is None else f" ({limit.seconds:g} s, {limit.source})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
