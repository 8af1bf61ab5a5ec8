"""Benches: modules with ``run(torch)``, which says what was checked and gives the number of failures."""

from collections.abc import Callable
from typing import Any


def verdict(name: str, worst: dict[int, float], limit: float, torch: Any, title: str = "") -> int:
    """Print whether every rank's largest difference is small enough; how many are not."""
    if not torch.has_data:
        print(f" {name}: times only")
        return 0
    wrong = [rank for rank, error in sorted(worst.items()) if not error <= limit]
    word = f"[FAIL] on ranks {wrong}" if wrong else "OK"
    print(f" {title or f'{name} (ws={len(worst)})'}: {word}, largest difference {max(worst.values()):.3g}")
    return len(wrong)


def on_every_rank(torch: Any, body: Callable[[int, dict[int, Any]], None]) -> dict[int, Any]:
    """``body(rank, found)`` in a worker on every rank; what they leave in ``found``."""
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        body(rank, found)

    torch.multiprocessing.spawn(worker, nprocs=torch.rank_count)
    return found
