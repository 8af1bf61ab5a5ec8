"""Collectives of processes that share memory, beside gloo in the same run."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

from harness import Row, bench, ratio_at_most, sized
from megatile.runtime import shared

RANKS = sized(4, 2)
SIZES = sized(((4, 300, 30.0), (64 << 20, 4, 8.0)), ((4, 1, 30.0), (4096, 1, 8.0)))
"""Bytes, repetitions, and how many times faster than gloo."""


def ours(world: shared.World, count: int, repeat: int) -> float:
    """Seconds of an all-reduce, on average over repetitions in a row."""
    x = world.symmetric(count, "f32")
    x.local[:] = 0
    world.all_reduce(x)
    world.barrier()
    begun = time.perf_counter()
    for _ in range(repeat):
        world.all_reduce(x)
    return (time.perf_counter() - begun) / repeat


def _gloo(rank: int, port: int, sizes: Any, queue: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    found = []
    for nbytes, repeat, _ in sizes:
        x = torch.zeros(nbytes // 4)
        dist.all_reduce(x)
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(repeat):
            dist.all_reduce(x)
        found.append((time.perf_counter() - begun) / repeat)
    if rank == 0:
        queue.put(found)
    dist.barrier()
    dist.destroy_process_group()  # else gloo's threads may still run when the process ends, which aborts it


def gloo() -> list[float]:
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_gloo, args=(r, port, SIZES, queue)) for r in range(RANKS)]
    for process in processes:
        process.start()
    found: list[float] = queue.get(timeout=120)
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a process of gloo ended with exit code {process.exitcode}")
    return found


@bench("processes that share memory: all-reduce of 4", needs=["torch"])
def all_reduce() -> Iterator[Row]:
    """The mean of repetitions in a row, both in the same minute."""
    rival = gloo()
    for (nbytes, repeat, bar), theirs in zip(SIZES, rival, strict=True):
        mine = min(
            max(shared.run(ours, RANKS, heap=nbytes + 4096, args=(nbytes // 4, repeat)))
            for _ in range(sized(3, 1))
        )
        yield Row(f"all-reduce of {nbytes} B", mine, "s", theirs, "gloo", ratio_at_most(1 / bar))
