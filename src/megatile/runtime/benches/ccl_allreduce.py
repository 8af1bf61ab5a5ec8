"""All-reduce over all devices: rank r gives r + 1, everybody must get the sum of all shards."""

from functools import partial
from typing import Any

import numpy as np

from megatile.runtime.benches import on_every_rank
from megatile.runtime.host.placement import DPPolicy

CCL = "ccl.yaml"
"""On machines with SIPs, cubes and PEs the kernel of this file is run unless another is named."""
N_ELEM = 256
"""Elements per shard where no ccl.yaml says ``n_elem``."""
EXACT = 2048
"""Whole numbers up to this are exact in f16."""


def total(shards: int, ranks: int) -> int:
    """Return what every shard holds in the end."""
    return shards * ranks * (ranks + 1) // 2


def reduced(torch: Any, rank: int, found: dict[int, Any]) -> None:
    dist = torch.distributed
    shards = dist.participants() or ((0, 0),)
    cubes = len({cube for cube, _ in shards})
    pes = len(shards) // cubes
    if list(shards) != [(cube, pe) for cube in range(cubes) for pe in range(pes)]:
        raise RuntimeError(f"the {len(shards)} PEs of a SIP that take part are not whole cubes")
    policy = DPPolicy(
        cube="row_wise", pe="row_wise" if pes > 1 else "replicate", num_cubes=cubes, num_pes=pes
    )
    dtype = torch.float16 if total(len(shards), torch.rank_count) <= EXACT else torch.float32
    n_elem = int(torch.ccl.config["n_elem"]) if torch.ccl else N_ELEM
    x = torch.zeros((len(shards), n_elem), dtype=dtype, dp=policy, name=f"x{rank}").fill_(rank + 1)
    dist.all_reduce(x)
    if torch.has_data:
        found[rank] = x.numpy()


def run(torch: Any) -> int:
    size, devices = torch.distributed.get_world_size(), torch.shape.devices
    if size < devices:
        raise RuntimeError(f"world size {size} is not the number of devices {devices}")
    found = on_every_rank(torch, partial(reduced, torch))
    name = torch.distributed.algorithm
    if not found:
        print(f" {name} (ws={size}): times only")
        return 0
    expected = total(len(found[0]), len(found))
    wrong = [
        (rank, row, got)
        for rank, rows in found.items()
        for row, got in enumerate(rows)
        if np.any(got != expected)
    ]
    for rank, row, got in wrong:
        print(f" [FAIL] rank {rank} shard {row}: got mean={got.astype(float).mean():g}, expected={expected}")
    if not wrong:
        print(f" {name} (ws={size}): {sum(map(len, found.values()))} OK")
    return len(wrong)
