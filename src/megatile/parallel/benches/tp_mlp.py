"""A two-layer MLP divided by columns, then by rows: one all-reduce."""

from typing import Any

import numpy as np

from megatile.parallel import ColumnParallelLinear, RowParallelLinear, initialize_model_parallel, relu
from megatile.parallel.benches import difference, on_every_rank, values, verdict

TOKENS, HIDDEN, INNER = 16, 64, 256


def run(torch: Any) -> int:
    x, w1, w2 = values(0, TOKENS, HIDDEN), values(1, HIDDEN, INNER), values(2, INNER, HIDDEN)
    exact = np.maximum(x.astype(np.float32) @ w1.astype(np.float32), 0) @ w2.astype(np.float32)

    def body(rank: int, found: dict[int, float]) -> None:
        size = torch.distributed.get_world_size()
        initialize_model_parallel(size, torch=torch)
        up = ColumnParallelLinear(HIDDEN, INNER, torch=torch)
        down = RowParallelLinear(INNER, HIDDEN, torch=torch)
        up.weight.copy_(np.split(w1, size, 1)[rank])
        down.weight.copy_(np.split(w2, size, 0)[rank])
        y = down(relu(up(torch.empty(x.shape, dtype="f16").copy_(x))))
        found[rank] = difference(y.numpy(), exact) if torch.has_data else 0.0

    return verdict("tp_mlp", on_every_rank(torch, body), 0.05, torch)
