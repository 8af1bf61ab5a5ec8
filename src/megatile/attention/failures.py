"""When communication fails: find out which rank is gone, and say so on every rank."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from megatile.attention.errors import PeerError

GRACE_SECONDS = 3.0  # how long ranks that noticed a failure wait for the others to report


def timeout_from_environment() -> timedelta | None:
    """``MEGATILE_ATTENTION_TIMEOUT`` in seconds, or None: the group's own timeout holds."""
    text = os.environ.get("MEGATILE_ATTENTION_TIMEOUT", "")
    return timedelta(seconds=float(text)) if text else None


def wait_for(work: Any, group: dist.ProcessGroup, peer: int | None, doing: str) -> None:
    """Wait for a communication; if it fails, raise :class:`PeerError` that names the rank at fault.

    ``peer`` is the rank of the group at the other end, None for a collective.
    """
    if work is None:
        return
    timeout = timeout_from_environment()
    try:
        if timeout is None:
            work.wait()
        else:
            work.wait(timeout)
    except RuntimeError as error:
        raise explained(error, group, peer, doing) from error


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
    """Global ranks at fault. A closed connection to a known peer tells; otherwise all who are alive report in
    the store.
    """
    late = "imed out" in str(error) or "timeout" in str(error).lower()
    try:
        store = dist.PrefixStore(
            f"megatile/attention/{group.group_name}", dist.distributed_c10d._get_default_store()
        )
        me = dist.get_rank(group)
        store.set(f"alive/{me}", "1")
        if peer is not None and not late and not store.check([f"alive/{peer}"]):
            store.compare_set("culprit", "", str(peer))
        found = _awaited(store, dist.get_world_size(group), late)
    except (RuntimeError, dist.DistError):
        return [0], "ended (it kept the rendezvous store, which no longer answers)"
    how = "did not arrive in time" if late else "ended or lost its connection"
    return [dist.get_global_rank(group, rank) for rank in found], how


def _awaited(store: dist.Store, size: int, late: bool) -> list[int]:
    """The ranks named by somebody, or those that do not report within the time of grace."""
    deadline = time.monotonic() + GRACE_SECONDS
    missing = list(range(size))
    while missing and time.monotonic() < deadline:
        if store.check(["culprit"]):
            return [int(rank) for rank in store.get("culprit").decode().split(",")]
        missing = [rank for rank in missing if not store.check([f"alive/{rank}"])]
        time.sleep(0.02)
    if missing:
        store.compare_set("culprit", "", ",".join(map(str, missing)))
    return missing


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
