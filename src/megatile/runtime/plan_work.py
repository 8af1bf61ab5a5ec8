"""What each process of a launched plan does: read its inputs, follow its stream, leave its outputs."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.plan.model import Plan, Tile
from megatile.runtime.processes import write
from megatile.runtime.stream import UnitRun
from megatile.runtime.tile_memory import Memory
from megatile.runtime.torch_rules import DTYPES
from megatile.runtime.transport import Transport


def work(folder: Path, unit: int, settings: dict[str, Any]) -> None:
    """Run the stream of a unit ``repeat`` times; the shortest time and the last outputs are kept."""
    plan = Plan.from_json((folder / "plan").read_text(encoding="utf-8"))
    store = dist.distributed_c10d._get_default_store()
    best = float("inf")
    for number in range(settings["repeat"]):
        transport = Transport(plan, unit, dist.PrefixStore(f"run{number}", store), settings["timeout"])
        memory = Memory(plan, unit, _inputs(plan, unit, folder), folder / f"run_{number}")
        run = UnitRun(plan, unit, memory, transport)
        dist.barrier()
        start = perf_counter()
        outputs = run.run()
        best = min(best, perf_counter() - start)
    dist.barrier()  # others may still put into tiles of this unit
    for number, tile in enumerate(plan.tiles):
        if tile.name in outputs:
            flat = outputs[tile.name].contiguous().reshape(-1).view(torch.uint8)
            (folder / f"out_{number}_{unit}").write_bytes(flat.numpy().tobytes())
    write(folder / f"done_{unit}", {"choices": run.choices, "seconds": best})


def _inputs(plan: Plan, unit: int, folder: Path) -> dict[str, Tensor]:
    paths = [(tile, folder / f"in_{number}_{unit}") for number, tile in enumerate(plan.tiles)]
    return {tile.name: _read(path, tile) for tile, path in paths if path.exists()}


def _read(path: Path, tile: Tile) -> Tensor:
    data = bytearray(path.read_bytes())
    if not data:
        return torch.zeros(tile.shape, dtype=DTYPES[tile.dtype])
    return torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[tile.dtype]).reshape(tile.shape)
