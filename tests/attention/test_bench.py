"""``attention bench``: processes that die are named at once, whenever it happens; none outlives the bench."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.patience import patience

from megatile.attention.bench import BenchCase, run_bench
from megatile.runtime.errors import LaunchError

NAMES = ["ring", "zigzag", "hamilton"]


@pytest.mark.parametrize(("moment", "victim"), [("start", 0), ("zigzag", 1), ("hamilton", 0)])
def test_a_process_that_dies_is_named(moment, victim):
    pids = []

    def started(found):
        pids.extend(found)
        kill("start")

    def kill(now):
        if now == moment:
            os.kill(pids[victim], signal.SIGKILL)

    start = time.monotonic()
    case = BenchCase(processes=2, seqlen=64, heads=2, kv_heads=2, dim=8, repeats=200)
    with pytest.raises(
        LaunchError, match=f"^unit {victim} of the benchmark: ended by signal SIGKILL"
    ) as error:
        run_bench(case, NAMES, kill, started=started)
    assert error.value.units == (victim,)
    assert time.monotonic() - start < patience(60)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
