"""Ranks of a plan as threads of this process: the real `Transport` over an imitation of torch.distributed."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from megatile.plan.model import Plan
from megatile.runtime import failures, transport as transports
from megatile.runtime.stream import UnitRun
from megatile.runtime.tile_memory import Memory, RankMemory
from megatile.runtime.torch_rules import DTYPES

SECONDS = 20.0
"""After which a rank no longer waits for another one."""


class Work:
    """A communication that has begun."""

    def __init__(self, wait: Callable[[], None] = lambda: None):
        self._wait = wait

    def wait(self, limit: object = None) -> None:
        self._wait()


class Threads:
    """What `megatile.runtime.transport` uses of torch.distributed, and the store."""

    def __init__(self, ranks: int):
        self.world = SimpleNamespace(members=list(range(ranks)))
        self.messages: dict[Any, queue.SimpleQueue[torch.Tensor]] = defaultdict(queue.SimpleQueue)
        self.counts: dict[str, int] = defaultdict(int)
        self.lock, self.here = threading.RLock(), threading.local()
        self.broken = threading.Event()

    def new_group(self, members: list[int], backend: str) -> Any:
        return SimpleNamespace(members=members)

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.counts[key] += amount
            return self.counts[key]

    def _queue(self, *key: Any) -> queue.SimpleQueue[torch.Tensor]:
        with self.lock:
            return self.messages[key]

    def _take(self, *key: Any) -> torch.Tensor:
        for _ in range(int(SECONDS / 0.1)):
            try:
                return self._queue(*key).get(timeout=0.1)
            except queue.Empty:
                assert not self.broken.is_set(), "another rank failed"
        raise AssertionError(f"nothing came: {key}")

    def isend(self, tensor: torch.Tensor, dst: int, tag: int, group: Any) -> Work:
        self._queue(self.here.rank, dst, tag).put(tensor.clone())
        return Work()

    def irecv(self, tensor: torch.Tensor, src: int, tag: int, group: Any) -> Work:
        key = (src, self.here.rank, tag)
        return Work(lambda: tensor.copy_(self._take(*key)))  # type: ignore[arg-type, return-value]

    def all_gather(self, found: list[torch.Tensor], mine: torch.Tensor, group: Any, async_op: bool) -> Work:
        assert async_op, "a rank that waits by itself cannot be interrupted"
        for other in group.members:
            self._queue("gather", tuple(group.members), self.here.rank, other).put(mine.clone())

        def wait() -> None:
            for tensor, other in zip(found, group.members, strict=True):
                tensor.copy_(self._take("gather", tuple(group.members), other, self.here.rank))

        return Work(wait)


def on_threads(
    plan: Plan, inputs: dict[str, Any], folder: Path | None = None, timeout: float = SECONDS
) -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """The outputs of all ranks, and what they chose; with a folder they share memory."""
    threads, found, errors = Threads(plan.units), {}, []
    kinds = {tile.name: DTYPES[tile.dtype] for tile in plan.tiles}

    def work(rank: int) -> None:
        threads.here.rank = rank
        try:
            wires = transports.Transport(plan, rank, threads, timeout, threads.world)
            if folder is None:
                memory: Memory = RankMemory(plan, rank, {k: np.asarray(x, "f4") for k, x in inputs.items()})
            else:
                own = {k: torch.from_numpy(np.array(x[rank])).to(kinds[k]) for k, x in inputs.items()}
                memory = Memory(plan, rank, own, folder)
            run = UnitRun(plan, rank, memory, wires)
            found[rank] = run.run(), run.choices
        except BaseException as error:
            errors.append(error)
            threads.broken.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "dist", threads)
        patch.setattr(failures, "WATCHER", SimpleNamespace(during=lambda wait: nullcontext()))
        every = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(plan.units)]
        for one in every:
            one.start()
        for one in every:
            one.join(2 * SECONDS)
    if errors:
        raise errors[0]
    outputs = {
        name: np.stack([found[r][0][name].float().numpy() for r in range(plan.units)]) for name in found[0][0]
    }
    return outputs, [found[r][1] for r in range(plan.units)]
