"""What each process does in the benchmark of overlap: a plan whose kernels last, and whose kernels do not.

A kernel that lasts sleeps: it takes no core from the messages, as on a GPU.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness import sized
from megatile.plan.model import Plan
from megatile.runtime import stream, torch_rules
from megatile.runtime.transport import Transport

REPEAT = sized(3, 1)


def work(folder: Path, unit: int, settings: dict[str, Any]) -> None:
    """The best seconds of the plan without kernels, and with kernels that take as long as a message did."""
    plan = Plan.from_json((folder / "plan").read_text(encoding="utf-8"))
    messages = min(_once(plan, unit, folder, settings, number, 0.0) for number in range(REPEAT + 1))
    pause = torch.tensor([messages / settings["steps"]], dtype=torch.float64)
    dist.all_reduce(pause, dist.ReduceOp.MAX)
    numbers = range(REPEAT + 1, 2 * REPEAT + 1)
    both = min(_once(plan, unit, folder, settings, number, pause.item()) for number in numbers)
    times = {"messages": messages, "kernels": pause.item() * settings["steps"], "both": both}
    (folder / f"times_{unit}").write_text(json.dumps(times), encoding="utf-8")


def _once(plan: Plan, unit: int, folder: Path, settings: dict[str, Any], number: int, pause: float) -> float:
    def kernel(x: Tensor) -> Tensor:
        time.sleep(pause)
        return x[:1]

    store = dist.PrefixStore(f"run{number}", dist.distributed_c10d._get_default_store())
    transport = Transport(plan, unit, store, settings["timeout"])
    inputs = {tile.name: torch.ones(tile.shape) for tile in plan.tiles if tile.role == "input"}
    memory = stream.Memory(plan, unit, inputs, folder / f"run_{number}")
    torch_rules.RULES = {**torch_rules.RULES, "exp": kernel}  # type: ignore[assignment]
    run = stream.UnitRun(plan, unit, memory, transport)
    dist.barrier()
    start = time.perf_counter()
    run.run()
    return time.perf_counter() - start
