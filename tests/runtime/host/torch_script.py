"""A script as it is written for torch; ``torch`` is PyTorch itself, or the namespace of a host."""

import sys

import numpy as np


def data_of(rank: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32)


def script(rank: int, size: int, torch, put) -> dict:
    """Collectives of torch.distributed on the data of a rank: name to result."""
    dist = torch.distributed
    found = {}

    def empty(*shape):
        return put(np.zeros(shape, np.float32))

    x = put(data_of(rank, 4 * size, 3))
    dist.all_reduce(x)
    found["all_reduce"] = x
    for op in ("MAX", "MIN", "PRODUCT"):
        y = put(data_of(rank, 5))
        dist.all_reduce(y, op=getattr(dist.ReduceOp, op))
        found[f"all_reduce {op}"] = y
    y = put(data_of(rank, 7))
    dist.broadcast(y, size - 1)
    found["broadcast"] = y
    y = empty(size * 2, 3)
    dist.all_gather_into_tensor(y, put(data_of(rank, 2, 3)))
    found["all_gather_into_tensor"] = y
    parts = [empty(2, 3) for _ in range(size)]
    dist.all_gather(parts, put(data_of(rank, 2, 3)))
    found["all_gather"] = parts[-1]
    y = empty(2, 3)
    dist.reduce_scatter_tensor(y, put(data_of(rank, 2 * size, 3)))
    found["reduce_scatter_tensor"] = y
    y = empty(2 * size, 3)
    dist.all_to_all_single(y, put(data_of(rank, 2 * size, 3)))
    found["all_to_all_single"] = y
    sent = [(rank + i) % 3 for i in range(size)]
    got = [(i + rank) % 3 for i in range(size)]
    y = empty(sum(got), 2)
    dist.all_to_all_single(y, put(data_of(rank, sum(sent), 2)), got, sent)
    found["uneven all_to_all_single"] = y
    y = empty(4)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, put(data_of(rank, 4)), (rank + 1) % size),
            dist.P2POp(dist.irecv, y, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    found["isend irecv"] = y
    groups = [dist.new_group([r for r in range(size) if r % 2 == odd]) for odd in (0, 1)]
    y = put(data_of(rank, 3))
    work = dist.all_reduce(y, group=groups[rank % 2], async_op=True)
    work.wait()
    found["group"] = y
    dist.barrier()
    return {name: np.array(value.numpy()) for name, value in found.items()}


def process(rank: int, size: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/{size}", rank=rank, world_size=size)
    found = script(rank, size, torch, lambda a: torch.from_numpy(a.copy()))
    np.savez(f"{folder}/{size}.{rank}.npz", **found)
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch  # noqa: F401
    import torch.multiprocessing as mp

    for count in (2, 4):  # torch is loaded once
        mp.start_processes(process, (count, sys.argv[1]), count, start_method="fork")
