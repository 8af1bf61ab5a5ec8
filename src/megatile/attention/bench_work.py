"""What each process of ``megatile attention bench`` does: attention by every schedule, checked and timed."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from megatile.attention.functional import hamilton_attention
from megatile.attention.kernels import KernelOptions, choose_kernel
from megatile.attention.schedules.bands import FULL, Band, Tile
from megatile.attention.sharding import shard_sequence
from megatile.runtime.worker import write


def work(folder: Path, unit: int, settings: dict[str, Any]) -> None:
    """Rank 0 knows the whole result and tells the largest error; times are those of the slowest rank."""
    sizes = [(settings["batch"], settings["length"], heads, settings["dim"]) for heads in settings["heads"]]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[settings["dtype"]]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(size, generator=generator).to(dtype) for size in (sizes[0], sizes[1], sizes[1]))
    expected = _single(q, k, v, settings["causal"])
    for number, name in enumerate(settings["schedules"]):
        own = {"causal": settings["causal"], "schedule": name}
        mine = [shard_sequence(x, **own) for x in (q, k, v)]
        wanted = shard_sequence(expected, **own)
        best = float("inf")
        for _ in range(settings["repeat"] + 1):  # the first run is not counted
            dist.barrier()
            start = perf_counter()
            out = hamilton_attention(*mine, **own)
            last, best = perf_counter() - start, min(best, perf_counter() - start)
        best = last if settings["repeat"] == 0 else best
        found = torch.tensor(
            [best, float((out.float() - wanted.float()).abs().max()) if out.numel() else 0.0]
        )
        dist.all_reduce(found, dist.ReduceOp.MAX)
        if unit == 0:
            write(
                folder / f"bench_{number}",
                {"schedule": name, "seconds": float(found[0]), "error": float(found[1])},
            )


def _single(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same attention on one device."""
    options = KernelOptions(float(q.shape[-1]) ** -0.5)
    kernel = choose_kernel(q, v, options)
    tile = Tile(Band(None, 0) if causal else FULL)
    out = torch.zeros_like(q)
    for part in kernel.divide(tile, q.shape[1], k.shape[1]):
        rows, columns = slice(*part.rows), slice(*part.columns)
        out[:, rows] = kernel.forward(q[:, rows], k[:, columns], v[:, columns], part.tile, options)[0]
    return out
