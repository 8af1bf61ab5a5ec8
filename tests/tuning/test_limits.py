"""Searches end soon with their workers: by a signal, and when their time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
from tests.patience import patience, wait_until
from tests.sim.test_limits import ENDLESS, rounds
from tests.sim.toys import toy

import megatile as mt
from megatile.core.limits import time_limit
from megatile.sim import TimeBudgetExceeded

OVER = {"networks.net.latency": ["1 ns", "2 ns", "3 ns"]}
SWEEP = """
import multiprocessing, os, sys, threading
from time import sleep
import megatile as mt
from tests.tuning.test_limits import *

mt.simulate(rounds(10), machine=toy(1), engine="compiled")
def began():
    while len(multiprocessing.active_children()) < 2:
        sleep(0.1)
    print(*(c.pid for c in multiprocessing.active_children()), flush=True)
threading.Thread(target=began, daemon=True).start()
mt.sweep(rounds(ENDLESS), OVER, machine=toy(1), workers=2, progress=False)
"""


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sweep_and_its_workers(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    workers = [int(word) for word in process.stdout.readline().split()]
    try:
        assert len(workers) == 2
        assert all(_running(pid) for pid in workers)
        process.send_signal(number)
        assert process.wait(timeout=patience(60)) == -number
        assert wait_until(lambda: not any(_running(pid) for pid in workers), 3)
    finally:
        process.kill()
        for pid in filter(_running, workers):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2, "threads"])
def test_a_limit_says_how_many_points_were_done(workers: int | str) -> None:
    how: dict[str, object] = {"workers": workers}
    if workers == "threads":
        how = {"executor": ThreadPoolExecutor(2)}
    before = monotonic()
    with (
        pytest.raises(TimeBudgetExceeded, match=r"[0-3] of 3 points were (examined|measured) within"),
        time_limit(0.5),
    ):
        mt.sweep(
            rounds(ENDLESS if workers != "threads" else 3_000_000),
            OVER,
            machine=toy(1),
            progress=False,
            **how,
        )
    assert monotonic() - before < patience(10)
