"""Attention measured with real processes on this machine: every schedule timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from megatile.attention.errors import AttentionError
from megatile.attention.schedules import make_schedule
from megatile.runtime.processes import Started, job_folder, read, run_processes

DTYPES = {
    "f32": ("float32", 1e-5),
    "bf16": ("bfloat16", 2e-2),
    "f16": ("float16", 4e-3),
}  # name, largest error


@dataclass(frozen=True)
class BenchCase:
    """What is measured: one attention layer's forward (and backward) of a divided sequence."""

    processes: int = 4
    seqlen: int = 4096
    heads: int = 8
    kv_heads: int = 8
    dim: int = 64
    batch: int = 1
    causal: bool = False
    backward: bool = False
    dtype: str = "f32"
    repeats: int = 3
    threads: int = 1


@dataclass(frozen=True)
class BenchRow:
    """Result of a schedule: the slowest rank's median seconds, its parts, and the largest error found."""

    schedule: str
    seconds: float
    communication: float
    computation: float
    error: float
    correct: bool


def run_bench(
    case: BenchCase,
    schedules: Sequence[str],
    progress: Callable[[str], None] = lambda _: None,
    timeout: float = 3600.0,
    started: Started | None = None,
) -> list[BenchRow]:
    """Start the processes once and run all schedules in them, over gloo; ``progress`` hears each name.

    ``timeout`` (seconds) bounds all of it. ``started`` is called with the process ids. A process that fails
    raises :class:`LaunchError`, which names it.
    """
    for name in schedules:
        make_schedule(name, case.processes)
    if case.dtype not in DTYPES:
        raise AttentionError(f"dtype must be one of {', '.join(DTYPES)}, got '{case.dtype}'")
    if case.heads % case.kv_heads:
        raise AttentionError(f"the {case.heads} heads are not a multiple of the {case.kv_heads} KV heads")
    with job_folder() as folder:
        waiting = list(enumerate(schedules))

        def poll() -> None:
            while waiting and (folder / f"start_{waiting[0][0]}").exists():
                progress(waiting.pop(0)[1])

        run_processes(
            "megatile.attention.bench_rank",
            folder,
            case.processes,
            what="the benchmark",
            timeout=timeout,
            threads=case.threads,
            started=started,
            poll=poll,
            case=asdict(case),
            schedules=list(schedules),
        )
        poll()
        return [BenchRow(**read(folder / f"row_{number}")) for number in range(len(schedules))]
