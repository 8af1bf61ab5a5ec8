"""Attention measured with real processes on this machine: every schedule timed and checked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from megatile.attention.errors import AttentionError, PeerError
from megatile.attention.schedules import make_schedule

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
    timeout: float = 600.0,
) -> list[BenchRow]:
    """Start the processes once and run all schedules in them, over gloo; ``progress`` hears each name."""
    for name in schedules:
        make_schedule(name, case.processes)
    if case.dtype not in DTYPES:
        raise AttentionError(f"dtype must be one of {', '.join(DTYPES)}, got '{case.dtype}'")
    if case.heads % case.kv_heads:
        raise AttentionError(f"the {case.heads} heads are no multiple of the {case.kv_heads} KV heads")
    task = {"case": asdict(case), "schedules": list(schedules), "port": _free_port(), "timeout": timeout}
    with tempfile.TemporaryFile("w+") as complaints:
        processes = [_started({**task, "rank": rank}, complaints) for rank in range(case.processes)]
        try:
            return _collect(processes[0], len(schedules), progress, complaints)
        finally:
            for process in processes:
                _ended(process)


def _started(task: dict[str, object], complaints: IO[str]) -> subprocess.Popen[str]:
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "megatile.attention.bench_rank"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(task))
    process.stdin.close()
    return process


def _collect(
    first: subprocess.Popen[str], count: int, progress: Callable[[str], None], complaints: IO[str]
) -> list[BenchRow]:
    assert first.stdout is not None
    rows: list[BenchRow] = []
    for line in first.stdout:
        said = json.loads(line)
        if "start" in said:
            progress(said["start"])
        else:
            rows.append(BenchRow(**said["row"]))
    if len(rows) < count:
        complaints.seek(0)
        lines = complaints.read().strip().splitlines() or ["no message"]
        raise PeerError(f"the benchmark failed: {lines[-1]}")
    return rows


def _ended(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
