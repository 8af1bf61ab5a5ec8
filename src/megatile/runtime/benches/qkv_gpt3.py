"""The QKV projection of GPT-3: columns of the weight over all devices, then over the cubes and PEs of
each."""

from typing import Any

import numpy as np

from megatile.runtime.benches import on_every_rank, verdict
from megatile.runtime.host.ops import seats_for
from megatile.runtime.host.placement import DPPolicy

HIDDEN, TOKENS = 12288, 16


def kernel(x: Any, w: Any, y: Any, tokens: int, hidden: int, columns: int, tl: Any) -> None:
    me = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    mine = w + me * hidden * columns * 2
    tl.composite(
        op="gemm",
        a=tl.ref(x, (tokens, hidden)),
        b=tl.ref(mine, (hidden, columns)),
        out_ptr=y + me * tokens * columns * 2,
        tile=(16, 64, 256),
    )


def run(torch: Any) -> int:
    columns = 3 * HIDDEN // torch.distributed.get_world_size()
    cubes, pes = seats_for(torch, columns)
    split = DPPolicy("column_wise", "column_wise", num_cubes=cubes, num_pes=pes)
    data = np.random.default_rng(0).standard_normal((TOKENS, HIDDEN), dtype=np.float32).astype(np.float16)

    def body(rank: int, worst: dict[int, float]) -> None:
        everywhere = DPPolicy(num_cubes=cubes, num_pes=pes)
        x = torch.empty((TOKENS, HIDDEN), dp=everywhere, name=f"x{rank}").copy_(data)
        w = torch.zeros((HIDDEN, columns), dp=split, name=f"w{rank}")
        weight = (np.random.default_rng(rank + 1).standard_normal((HIDDEN, 1)) / 64).astype(np.float16)
        w.copy_(np.broadcast_to(weight, w.shape))
        y = torch.empty((TOKENS, columns), dp=split, name=f"y{rank}")
        torch.launch("qkv_gpt3", kernel, x, w, y, TOKENS, HIDDEN, columns // (cubes * pes))
        if torch.has_data:
            expected = data.astype(np.float32) @ weight.astype(np.float32)
            worst[rank] = float(np.abs(y.numpy().astype(np.float32) - expected).max())

    title = f"qkv_gpt3 {TOKENS}x{3 * HIDDEN}x{HIDDEN}"
    return verdict("qkv_gpt3", on_every_rank(torch, body), 0.02, torch, title)
