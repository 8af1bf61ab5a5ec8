"""A tile program on the ranks that torchrun has started."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.runtime.computers.ranks import Meeting, Ranks, library
from megatile.runtime.errors import LaunchError, PeerError
from megatile.runtime.program_memory import ProgramMemory, aligned
from megatile.runtime.shared import world as shared

_PAGES = 1 << 14
"""A heap has at most so many pages: they grow with it."""
_Barrier = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def launch_on_ranks(
    prepared: Callable[[int], ProgramMemory], timeout: float, started: Callable[[list[int]], None] | None
) -> float:
    """Run this rank's part of a program; the results of all are in the arrays of all afterwards."""
    meeting = Meeting(timeout)
    memory, problem = None, None
    try:
        try:
            memory = prepared(meeting.size)
        except MegatileError as error:
            problem = error
        equal = meeting.same(problem, *((memory.code.source.text, memory.views) if memory else ("", ())))
        assert memory is not None
        values = memory.views if equal else _of_rank_0(meeting, memory.views)
        head = aligned(int(shared.library().mt_world_bytes(meeting.size)))
        ranks = meeting.ranks(head + memory.nbytes)
    finally:
        meeting.close()
    try:
        if ranks.leader:
            memory.fill(ranks.heap.bytes[head:], values)
            shared.library().mt_world_begin(ranks.heap.address(0), ranks.size, os.cpu_count() or 1, 0)
        ranks.together()
        if started is not None:
            started([record["pid"] for record in meeting.records])
        return _run(ranks, memory, head, timeout)
    finally:
        ranks.close()


def _run(ranks: Ranks, memory: ProgramMemory, head: int, timeout: float) -> float:
    from megatile.runtime.computers.service import Service

    code, pages = memory.code, library()
    page = 4096
    while ranks.heap.nbytes > page * _PAGES:
        page *= 2
    count = -(-ranks.heap.nbytes // page)

    def lose(rank: int) -> None:
        pages.mt_pages_lose()
        shared.library().mt_lose(ranks.heap.address(0), rank)

    service = Service(ranks, page, (head // page, (head + memory.arguments) // page), lose)
    allowed = np.zeros(count, np.uint8)
    barrier: Any = shared.library().mt_barrier
    idle: Any = shared.library().mt_idle
    if ranks.apart:
        begun = pages.mt_pages_begin(
            ranks.base, allowed.ctypes.data, count, page, service.asks[1], service.answer[0]
        )
        if begun:
            raise LaunchError("this system does not let a process guard its memory")
        barrier, idle = _Barrier(lambda _: service.barrier()), pages.mt_pages_idle
    own = code.collectives
    if own:
        pages.mt_pages_collectives(own[0], ranks.base, ranks.heap.nbytes, ranks.rank, ranks.size)
        code.library.megatile_collectives(ctypes.cast(pages.mt_pages_collective, ctypes.c_void_p), own[1])
    service.start(timeout)
    try:
        try:
            seconds = memory.call(ranks.base + head, ranks.rank, ranks.size, ranks.base, barrier, idle)
        except PeerError:
            service.check(certainly=True)
            raise
        except BaseException as problem:
            service.fail(problem)
            raise
        slowest = service.finish(seconds)
        memory.take(ranks.heap.bytes[head:])
        return slowest
    finally:
        service.close()
        if own:
            code.library.megatile_collectives(*own)
        if ranks.apart:
            pages.mt_pages_end()


def _of_rank_0(meeting: Meeting, views: list[np.ndarray]) -> list[np.ndarray]:
    """The ranks were given different values: those of rank 0 count."""
    import torch
    import torch.distributed as dist

    values = [view.copy(order="C") for view in views]
    for value in values:
        dist.broadcast(torch.from_numpy(value.reshape(-1).view(np.uint8)), 0, group=meeting.members.group)
    return values
