"""Who starts processes and ends in whatever way leaves none of them behind, nor their files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from tests.patience import patience, wait_until

pytest.importorskip("torch", reason="torch is not installed: there are no processes")
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are found by /proc", allow_module_level=True)

BENCH = "attention bench --nproc 2 --seqlen 64 --heads 2 --head-dim 8 --schedule ring --repeats 1000000"
LAUNCH = """
import numpy as np
from megatile.plan.build import PlanBuilder
from megatile.runtime.launch import launch

b = PlanBuilder("waiting", scale="device", units=2)
x = b.tile("x", (1,), "f32", memory="l2", role="inout")
flag = b.flag("never")
b.wait(flag, 1)
launch(b.finish(), inputs={"x": np.zeros((2, 1))})
"""
COMMANDS = {"bench": ["-m", "megatile", *BENCH.split()], "launch": ["-c", LAUNCH]}


def marked(mark):
    """The processes that have the mark in their environment; those that ended already do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("command", "how", "when"),
    [
        ("bench", "SIGTERM", "start"),
        ("bench", "SIGTERM", "middle"),
        ("bench", "SIGINT", "middle"),
        ("launch", "SIGKILL", "start"),
        ("launch", "SIGKILL", "middle"),
    ],
)
def test_nothing_is_left_behind_within_three_seconds(command, how, when, tmp_path):
    mark = f"MARK_{uuid.uuid4().hex}"
    environment = {**os.environ, mark: "1", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, *COMMANDS[command]],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A shell may have told the tests to ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The process itself, the one that forks (it imports torch first), and two workers that have met.
    if when == "start":
        assert wait_until(lambda: len(marked(mark)) == 2, 60)
        time.sleep(0.5)
    else:
        assert wait_until(lambda: len(marked(mark)) >= 4 and list(tmp_path.glob("*/rendezvous")), 60)
    process.send_signal(getattr(signal, how))
    process.wait(patience(10))
    left = wait_until(lambda: not marked(mark), 3)
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
    assert left
    assert wait_until(lambda: not list(tmp_path.iterdir()), 3)
