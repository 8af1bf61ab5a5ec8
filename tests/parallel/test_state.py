"""``parallel/state.py``: which ranks divide a model's tensors, and which its data."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import put

import megatile.parallel as tp


def test_tensor_and_data_parallel_groups() -> None:
    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(2)
        x = put(torch, np.full((2, 2), float(rank + 1), np.float32))
        tp.reduce_from_tp_region(x)
        y = put(torch, np.full((2, 2), float(rank + 1), np.float32))
        torch.distributed.all_reduce(y, group=tp.get_data_parallel_group())
        return (
            tp.get_tensor_model_parallel_rank(), tp.get_data_parallel_rank(),
            tp.get_data_parallel_world_size(), float(x.numpy()[0, 0]), float(y.numpy()[0, 0]),
        )  # fmt: skip

    assert on_ranks(body) == [
        (0, 0, 2, 3.0, 4.0),
        (1, 0, 2, 3.0, 6.0),
        (0, 1, 2, 7.0, 4.0),
        (1, 1, 2, 7.0, 6.0),
    ]
