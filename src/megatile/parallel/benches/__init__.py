"""Benches of divided models: modules with ``run(torch)``."""

from typing import Any

import numpy as np

from megatile.runtime.benches import on_every_rank, verdict

__all__ = ["difference", "on_every_rank", "values", "verdict"]


def values(seed: int, *shape: int) -> Any:
    """Small numbers, the same on every machine."""
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float16)


def difference(got: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(got, np.float32) - np.asarray(expected, np.float32)).max())
