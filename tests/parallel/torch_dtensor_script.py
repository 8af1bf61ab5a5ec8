"""Redistributions and products of DTensors as they are written for torch; ``api`` is torch's, or ours."""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

import numpy as np


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


SIZES = {"even": (8, 12, 4), "uneven": (5, 7, 3), "empty": (2, 3, 6)}
"""Rows, inner dimension and columns; with two rows some of four ranks hold nothing."""


def script(rank: int, size: int, api: Any, put: Any) -> dict[str, np.ndarray]:
    """By name of the case: this rank's part after redistributions, and all of a product."""
    found = {}
    mesh = api.init_device_mesh("cpu", (size,))
    plain = [api.Replicate(), api.Shard(0), api.Shard(1)]
    for name, (m, k, n) in SIZES.items():
        a, b = values(1, m, k), values(2, k, n)
        for before, after in product(plain, plain):
            x = api.distribute_tensor(put(a), mesh, [before]).redistribute(mesh, [after])
            found[f"{name}: {before} -> {after}"] = x.to_local()
            y = api.distribute_tensor(put(a), mesh, [before]) @ api.distribute_tensor(put(b), mesh, [after])
            found[f"{name}: {before} @ {after}"] = y.full_tensor()
        for after in plain:
            term = api.DTensor.from_local(put(values(10 + rank, m, k)), mesh, [api.Partial()])
            found[f"{name}: Partial -> {after}"] = term.redistribute(mesh, [after]).to_local()
    if size == 4:
        grid = api.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        states = [tuple(pair) for pair in product(plain, plain)]
        for before, after in product(states, states):
            x = api.distribute_tensor(put(values(3, 4, 8)), grid, before).redistribute(grid, after)
            found[f"grid: {before} -> {after}"] = x.to_local()
    return {name: np.array(value.numpy()) for name, value in found.items()}


def process(rank: int, size: int, folder: str) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor as api

    dist.init_process_group("gloo", init_method=f"file://{folder}/{size}", rank=rank, world_size=size)
    found = script(rank, size, api, lambda a: torch.from_numpy(a.copy()))
    np.savez(f"{folder}/{size}.{rank}.npz", *found.values())
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as mp

    for count in (2, 4):  # torch is loaded once
        mp.start_processes(process, (count, sys.argv[1]), count, start_method="fork")
