"""The same MLP as DTensors: the divisions of the weights decide what is communicated."""

from typing import Any

import numpy as np

from megatile.parallel import Replicate, Shard, distribute_tensor, init_device_mesh
from megatile.parallel.benches import difference, on_every_rank, values, verdict
from megatile.parallel.benches.tp_mlp import HIDDEN, INNER, TOKENS


def run(torch: Any) -> int:
    x, w1, w2 = values(0, TOKENS, HIDDEN), values(1, HIDDEN, INNER), values(2, INNER, HIDDEN)
    exact = np.maximum(x.astype(np.float32) @ w1.astype(np.float32), 0) @ w2.astype(np.float32)

    def body(rank: int, found: dict[int, float]) -> None:
        mesh = init_device_mesh(torch.backend, (torch.distributed.get_world_size(),), torch=torch)
        whole = distribute_tensor(x, mesh, [Replicate()])
        up, down = distribute_tensor(w1, mesh, [Shard(1)]), distribute_tensor(w2, mesh, [Shard(0)])
        y = ((whole @ up).relu() @ down).full_tensor()
        found[rank] = difference(y.numpy(), exact) if torch.has_data else 0.0

    return verdict("dtensor_mlp", on_every_rank(torch, body), 0.05, torch)
