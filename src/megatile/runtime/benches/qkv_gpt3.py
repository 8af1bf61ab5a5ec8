"""The QKV projection of GPT-3: columns of the weight over all devices, then over the cubes and PEs of
each."""

from typing import Any

import numpy as np

from megatile.runtime.host.placement import DPPolicy

HIDDEN, TOKENS = 12288, 16


def kernel(x: Any, w: Any, y: Any, tokens: int, hidden: int, columns: int, tl: Any) -> None:
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    mine = w + me * hidden * columns * 2
    out = y + me * tokens * columns * 2
    tl.composite(
        op="gemm",
        a=tl.ref(x, (tokens, hidden)),
        b=tl.ref(mine, (hidden, columns)),
        out_ptr=out,
        tile=(16, 64, 256),
    )


def parts(columns: int, cubes: int, pes: int) -> tuple[int, int]:
    """As many cubes and PEs as divide the columns evenly."""
    best = max(
        (c * p, c, p) for c in range(1, cubes + 1) for p in range(1, pes + 1) if columns % (c * p) == 0
    )
    return best[1], best[2]


def worker(rank: int, torch: Any, worst: dict[int, float]) -> None:
    torch.accelerator.set_device_index(rank)
    columns = 3 * HIDDEN // torch.distributed.get_world_size()
    cubes, pes = parts(columns, torch.shape.cubes, torch.shape.pes)
    random = np.random.default_rng(0)
    data = random.standard_normal((TOKENS, HIDDEN), dtype=np.float32).astype(np.float16)
    x = torch.empty((TOKENS, HIDDEN), dp=DPPolicy(num_cubes=cubes, num_pes=pes), name=f"x{rank}").copy_(data)
    split = DPPolicy("column_wise", "column_wise", num_cubes=cubes, num_pes=pes)
    w = torch.zeros((HIDDEN, columns), dp=split, name=f"w{rank}")
    weight = (np.random.default_rng(rank + 1).standard_normal((HIDDEN, 1)) / 64).astype(np.float16)
    w.copy_(np.broadcast_to(weight, w.shape))
    y = torch.empty((TOKENS, columns), dp=split, name=f"y{rank}")
    torch.launch("qkv_gpt3", kernel, x, w, y, TOKENS, HIDDEN, columns // (cubes * pes))
    if torch.has_data:
        expected = data.astype(np.float32) @ weight.astype(np.float32)
        worst[rank] = float(np.abs(y.numpy().astype(np.float32) - expected).max())


def run(torch: Any) -> int:
    worst: dict[int, float] = {}
    torch.multiprocessing.spawn(worker, args=(torch, worst), nprocs=torch.distributed.get_world_size())
    if not worst:
        print(" qkv_gpt3: times only")
        return 0
    wrong = [rank for rank, error in worst.items() if not error <= 0.02]
    word = f"[FAIL] on ranks {wrong}" if wrong else "OK"
    print(f" qkv_gpt3 {TOKENS}x{3 * HIDDEN}x{HIDDEN}: {word}, largest difference {max(worst.values()):.3g}")
    return len(wrong)
