"""Virtual addresses: PE p finds its shard at ``base + p * stride``, and its page table says where that
lies."""

from typing import Any

import numpy as np

from megatile.runtime.host.placement import DPPolicy

ROWS, COLUMNS = 4, 96


def kernel(base: Any, stride: int, count: int, tl: Any) -> None:
    pid = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    mine = base + pid * stride
    tl.store(mine, tl.load(mine, shape=(count,), dtype="f16") * 2.0)


def run(torch: Any) -> int:
    cubes, pes = min(2, torch.shape.cubes), min(2, torch.shape.pes)
    shards = cubes * pes
    policy = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=cubes, num_pes=pes)
    data = np.arange(shards * ROWS * COLUMNS, dtype=np.float16).reshape(shards * ROWS, COLUMNS)
    x = torch.empty(data.shape, dtype=torch.float16, dp=policy, name="x").copy_(data)
    torch.launch("va_offset", kernel, x, ROWS * COLUMNS * 2, ROWS * COLUMNS)
    wrong = 0
    for shard in x.shards:
        mmu = torch.memory.mmu(shard.sip, shard.cube, shard.pe)
        wrong += mmu.translate(x.va_base + shard.offset_bytes, shard.nbytes).encode() != shard.pa
    if torch.has_data:
        wrong += int(np.sum(x.numpy() != 2 * data))
    print(f" va_offset over {shards} PEs: {'OK' if not wrong else f'[FAIL] {wrong} differ'}")
    return wrong
