"""``bench``: attention by several schedules on real processes of this computer, verified and timed."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megatile.attention.errors import AttentionError
from megatile.attention.plans import Problem
from megatile.attention.schedules import make_schedule
from megatile.runtime.processes import read, run_processes

TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "f16": 4e-3}
"""Largest error against one device, for inputs of unit variance."""


@dataclass(frozen=True)
class Timing:
    """One schedule: seconds of the slowest rank in its best run, and the largest error against one device."""

    schedule: str
    seconds: float
    error: float
    correct: bool

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    problem: Problem,
    schedules: Sequence[str],
    nproc: int,
    *,
    repeat: int = 3,
    timeout: float = 600.0,
    threads: int | None = None,
    finished: Callable[[int], None] | None = None,
) -> list[Timing]:
    """Run attention by each schedule on ``nproc`` processes; ``finished`` hears how many are done."""
    if problem.dtype not in TOLERANCE:
        raise AttentionError(f"attention on processes takes {', '.join(TOLERANCE)}, not {problem.dtype}")
    for name in schedules:
        make_schedule(name, nproc)
    with tempfile.TemporaryDirectory(prefix="megatile-") as name:
        folder = Path(name)
        stop = threading.Event()
        watcher = threading.Thread(target=_watch, args=(folder, len(schedules), finished, stop), daemon=True)
        watcher.start()
        try:
            run_processes(
                "megatile.attention.bench_work",
                folder,
                nproc,
                what="the benchmark",
                timeout=timeout,
                threads=threads,
                schedules=list(schedules),
                repeat=repeat,
                batch=problem.batch,
                length=problem.length,
                heads=[problem.heads, problem.groups],
                dim=problem.dim,
                causal=problem.causal,
                dtype=problem.dtype,
            )
        finally:
            stop.set()
            watcher.join()
        found = [read(folder / f"bench_{number}") for number in range(len(schedules))]
    limit = TOLERANCE[problem.dtype]
    return [Timing(f["schedule"], f["seconds"], f["error"], f["error"] <= limit) for f in found]


def _watch(folder: Path, count: int, finished: Callable[[int], None] | None, stop: threading.Event) -> None:
    done = 0
    while finished is not None and done < count and not stop.wait(0.1):
        while done < count and (folder / f"bench_{done}").exists():
            done += 1
            finished(done)
