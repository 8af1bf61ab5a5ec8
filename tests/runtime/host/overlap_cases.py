"""What files that test overlap share."""

from __future__ import annotations


def run(torch, body) -> dict[int, object]:
    found: dict[int, object] = {}

    def worker(rank: int) -> None:
        torch.accelerator.set_device_index(rank)
        torch.distributed.init_process_group()
        found[rank] = body(rank)

    torch.multiprocessing.spawn(worker, nprocs=torch.shape.devices)
    return found


def busy(x, count, steps, tl):
    """Arithmetic of the vector engine alone."""
    tile = tl.load(x, shape=(count,), dtype="f16")
    for _ in range(steps):
        tile = tile * 1.0
    tl.store(x, tile)
