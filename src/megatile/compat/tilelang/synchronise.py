"""Barriers and roles of warp groups."""

from __future__ import annotations

import math
from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.threads import get_thread_binding
from megatile.ir import nodes as n
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import as_expr, operate


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
    amount = min(min(one.counts), math.prod(b.state().threads))
    current().emit(n.Signal, flag=one.tile.name, index=(as_expr(index),), amount=as_expr(amount))


def barrier_wait(mbarrier: Any, parity: Any = 0, *_: Any) -> None:
    """Until the phase of this parity is complete."""
    one, index = _element(mbarrier)
    current().emit(
        n.Wait, flag=one.tile.name, index=(as_expr(index),), value=as_expr(parity), phase=min(one.counts)
    )


class ws:
    """``with T.ws(0):`` the statements of warp groups, which are 128 threads each."""

    def __init__(self, *groups: int):
        self.groups = groups or (0,)

    def __enter__(self) -> None:
        builder = current()
        if not builder.scales:
            builder.open_implied()
        self.span = builder.span()
        self.inner = builder.body()
        self.body = self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        builder = current()
        self.inner.__exit__(*error)
        if error[0] is not None:
            return
        thread = get_thread_binding(0)
        condition = None
        for group in self.groups:
            one = operate("and", thread >= 128 * group, thread < 128 * (group + 1))
            condition = one if condition is None else operate("or", condition, one)
        builder.append(n.If(as_expr(condition), tuple(self.body.nodes), (), span=self.span))


def tcgen05_mma_arrive(mbar: Any, *_: Any, **__: Any) -> None:
    """The matrix unit arrives when the products before are done: at once."""
    barrier_arrive(mbar)
