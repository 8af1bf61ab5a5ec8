"""The processes of a launch: ``python -m megatile.runtime.worker FOLDER`` forks one for every unit.

torch is imported once, before the forks. The folder holds the plan, the inputs of every unit and the
rendezvous; each process leaves its outputs there, or a report of what went wrong, and its exit code.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatile.core.errors import MegatileError
from megatile.plan.model import Plan, Tile
from megatile.runtime.stream import UnitRun
from megatile.runtime.torch_rules import DTYPES
from megatile.runtime.transport import PeerGone, Transport


def main(folder: Path) -> None:
    """Fork the processes, tell their ids, and note how each of them ends."""
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    units: dict[int, int] = {}
    for unit in range(settings["units"]):
        child = os.fork()
        if child == 0:
            output = os.open(folder / f"output_{unit}", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = work(folder, unit, settings)
            sys.stdout.flush()
            os._exit(code)
        units[child] = unit
    write(folder / "pids", list(units))
    while units:
        child, status = os.wait()
        write(folder / f"exit_{units.pop(child)}", os.waitstatus_to_exitcode(status))


def write(path: Path, value: Any) -> None:
    """Write JSON in one go: whoever waits for the file finds all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.rename(path)


def work(folder: Path, unit: int, settings: dict[str, Any]) -> int:
    """Run one unit's stream; the exit code."""
    torch.set_num_threads(settings["threads"])
    try:
        plan = Plan.from_json((folder / "plan.json").read_text(encoding="utf-8"))
        store = dist.FileStore(str(folder / "rendezvous"), plan.units)
        limit = timedelta(seconds=settings["timeout"])
        dist.init_process_group("gloo", store=store, rank=unit, world_size=plan.units, timeout=limit)
        seconds, run = _repeated(plan, unit, folder, store, settings)
        _leave(folder, unit, run, seconds)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        _report(folder, unit, error)
        return 1
    return 0


def _repeated(
    plan: Plan, unit: int, folder: Path, store: Any, settings: dict[str, Any]
) -> tuple[float, tuple[UnitRun, dict[str, Tensor]]]:
    """Run ``repeat`` times; the shortest time and the last run."""
    from time import perf_counter

    best = float("inf")
    for number in range(settings["repeat"]):
        transport = Transport(plan, unit, dist.PrefixStore(f"run{number}", store), settings["timeout"])
        run = UnitRun(plan, unit, _inputs(plan, unit, folder), transport)
        dist.barrier()
        start = perf_counter()
        outputs = run.run()
        dist.barrier()
        best = min(best, perf_counter() - start)
    return best, (run, outputs)


def _inputs(plan: Plan, unit: int, folder: Path) -> dict[str, Tensor]:
    found = {}
    for number, tile in enumerate(plan.tiles):
        path = folder / f"in_{number}_{unit}"
        if path.exists():
            found[tile.name] = _read(path, tile)
    return found


def _read(path: Path, tile: Tile) -> Tensor:
    data = bytearray(path.read_bytes())
    if not data:
        return torch.zeros(tile.shape, dtype=DTYPES[tile.dtype])
    return torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[tile.dtype]).reshape(tile.shape)


def _leave(folder: Path, unit: int, result: tuple[UnitRun, dict[str, Tensor]], seconds: float) -> None:
    run, outputs = result
    for number, tile in enumerate(run.plan.tiles):
        if tile.name in outputs:
            flat = outputs[tile.name].contiguous().reshape(-1).view(torch.uint8)
            (folder / f"out_{number}_{unit}").write_bytes(flat.numpy().tobytes())
    done = {"choices": run.choices, "seconds": seconds}
    write(folder / f"done_{unit}", done)


def _report(folder: Path, unit: int, error: BaseException) -> None:
    """``own``: this process is at fault, not one it talked to."""
    own = not isinstance(error, PeerGone)
    text = str(error) if isinstance(error, MegatileError) else "".join(traceback.format_exception_only(error))
    write(folder / f"error_{unit}", {"own": own, "text": text.strip(), "trace": traceback.format_exc()})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
