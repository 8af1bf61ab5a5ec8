"""What several files of tests/runtime/host share."""

from __future__ import annotations

import numpy as np

from megatile.runtime.host.placement import DPPolicy, resolve_dp_policy

SIZE = 4


def data_of(rank: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32)


def run(torch, body, nprocs: int = SIZE) -> dict[int, object]:
    """What ``body(rank, torch)`` gives on every rank, after the usual beginning."""
    found: dict[int, object] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank)

    torch.multiprocessing.spawn(worker, nprocs=nprocs)
    return found


def put(torch, array):
    return torch.empty(array.shape, dtype=torch.float32).copy_(array)


WHOLE = [data_of(r, 8, 3) for r in range(SIZE)]


def works(torch) -> None:
    """The host is clean: a collective over all ranks gives what it should."""

    def body(rank):
        x = put(torch, np.full(3, rank + 1.0))
        torch.distributed.all_reduce(x)
        return x.numpy()[0]

    assert set(run(torch, body).values()) == {10.0}
    assert not torch.workers.running
    assert not torch.distributed.is_initialized()


MACHINES = ["ahbm", "dgx-h100", "h100-cluster", "hgx-a100", "mi300x-8"]


def double(x, count, tl):
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    mine = x + pid * count * 2
    tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") * 2.0)


def resolve(policy: DPPolicy, shape=(16, 32), sip: int = 0):
    return resolve_dp_policy(policy, shape=shape, itemsize=2, num_pe=8, num_cubes=16, target_sip=sip)
