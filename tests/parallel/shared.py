"""What several files of tests/parallel share."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.parallel import Partial, Replicate, Shard

R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
X = np.random.default_rng(0).integers(-4, 5, (6, 10)).astype(np.float32)
A, B = X[:, :8], np.random.default_rng(1).integers(-4, 5, (8, 12)).astype(np.float32)


RANDOM = np.random.default_rng(0)


def values(*shape: int) -> np.ndarray:
    return (RANDOM.standard_normal(shape) / 4).astype(np.float32)


def put(torch: Any, array: np.ndarray, dtype: str = "f32") -> Any:
    return torch.empty(array.shape, dtype=dtype).copy_(array)


def part(array: np.ndarray, dim: int, rank: int, size: int) -> np.ndarray:
    return np.split(array, size, dim)[rank]
