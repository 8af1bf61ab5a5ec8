"""Benches of divided models: modules with ``run(torch)``."""

from collections.abc import Callable
from typing import Any

import numpy as np


def verdict(name: str, worst: dict[int, float], limit: float, torch: Any) -> int:
    """Print whether every rank's largest difference is small enough; how many are not."""
    if not torch.has_data:
        print(f" {name}: times only")
        return 0
    wrong = [rank for rank, error in sorted(worst.items()) if not error <= limit]
    word = f"[FAIL] on ranks {wrong}" if wrong else "OK"
    print(f" {name} (ws={len(worst)}): {word}, largest difference {max(worst.values()):.3g}")
    return len(wrong)


def on_every_rank(torch: Any, body: Callable[[int, dict[int, float]], None]) -> dict[int, float]:
    """``body(rank, found)`` in a worker on every rank; what they leave in ``found``."""
    found: dict[int, float] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        body(rank, found)

    torch.multiprocessing.spawn(worker, nprocs=torch.distributed.get_world_size())
    return found


def values(seed: int, *shape: int) -> Any:
    """Small numbers, the same on every machine."""
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(np.float16)


def difference(got: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(got, np.float32) - np.asarray(expected, np.float32)).max())
