"""Workers on a host, and what each of them gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import megatile as mt

MACHINES = {"ahbm": {"sips": 4}, "dgx-h100": {"gpus": 4}}


def on_ranks(body: Callable[[int, Any], Any], machine: str = "ahbm", **options: Any) -> list[Any]:
    """``body(rank, torch)`` on every rank of a host, after the usual beginning."""
    found: dict[int, Any] = {}

    def worker(rank: int, torch: Any) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank, torch)

    with mt.host(machine=machine, **(MACHINES.get(machine, {}) | options)) as torch:
        size = torch.distributed.get_world_size()
        torch.multiprocessing.spawn(worker, args=(torch,), nprocs=size)
    return [found[rank] for rank in range(size)]
