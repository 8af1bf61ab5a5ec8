"""Barriers and roles of warp groups."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import as_expr


def nothing(*_: Any, **__: Any) -> None:
    """Orders work of the threads of one block (or hints at how), which run in step here."""


def _element(barrier: Any) -> tuple[b.Barrier, Any]:
    if isinstance(barrier, b.Barrier):
        return barrier, 0
    if isinstance(barrier, b.BarrierElement):
        return barrier.barrier, barrier.index
    raise ProgramError(
        f"{barrier!r} is no barrier",
        advice="make it with T.alloc_barrier(arrive_count=...), index it with [i]",
    )


def barrier_arrive(mbarrier: Any, *_: Any, **__: Any) -> None:
    """All threads of this role arrive; a phase ends when its arrivals are complete."""
    one, index = _element(mbarrier)
    state = b.state()
    threads = state.roles[-1] if state.roles else math.prod(state.threads)
    amount = min(min(one.counts), threads)
    current().emit(n.Signal, flag=one.tile.name, index=(as_expr(index),), amount=as_expr(amount))


def barrier_wait(mbarrier: Any, parity: Any = 0, *_: Any) -> None:
    """Until the phase of this parity is complete."""
    one, index = _element(mbarrier)
    current().emit(
        n.Wait, flag=one.tile.name, index=(as_expr(index),), value=as_expr(parity), phase=min(one.counts)
    )


@contextmanager
def ws(*groups: int) -> Iterator[None]:
    """The statements of warp groups; they run in the order of the text, which their barriers allow."""
    state = b.state()
    state.roles.append(128 * max(len(groups), 1))
    yield
    state.roles.pop()


def tcgen05_mma_arrive(mbar: Any, *_: Any, **__: Any) -> None:
    """The matrix unit arrives when the products before are done: at once."""
    barrier_arrive(mbar)
