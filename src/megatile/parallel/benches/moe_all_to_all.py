"""A mixture of experts, one per rank: tokens travel to their expert by all-to-all and come back."""

from typing import Any

import numpy as np

from megatile.parallel.benches import difference, on_every_rank, values, verdict
from megatile.runtime.host.ops import matmul, relaid

TOKENS, HIDDEN = 8, 32
"""Tokens of a rank for every expert; their number is even, as a router with capacity makes it."""


def run(torch: Any) -> int:
    def body(rank: int, found: dict[int, float]) -> None:
        size = torch.distributed.get_world_size()
        x = values(rank, size * TOKENS, HIDDEN)
        expert = torch.empty((HIDDEN, HIDDEN), dtype="f16").copy_(values(100 + rank, HIDDEN, HIDDEN))
        mine = torch.empty(x.shape, dtype="f16").copy_(x)
        arrived, back = torch.empty(x.shape, dtype="f16"), torch.empty(x.shape, dtype="f16")
        torch.distributed.all_to_all_single(arrived, mine)
        torch.distributed.all_to_all_single(back, relaid(matmul(arrived, expert)))
        exact = np.concatenate(
            [
                x[r * TOKENS : (r + 1) * TOKENS].astype(np.float32)
                @ values(100 + r, HIDDEN, HIDDEN).astype(np.float32)
                for r in range(size)
            ]
        )
        found[rank] = difference(back.numpy(), exact) if torch.has_data else 0.0

    return verdict("moe_all_to_all", on_every_rank(torch, body), 0.02, torch)
