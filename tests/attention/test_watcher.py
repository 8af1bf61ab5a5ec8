"""The thread that answers for a waiting process is gone before the interpreter is."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: there is nothing to watch")

PROGRAM = """
import time

import torch.distributed as dist

from megatile.attention import failures


class Slow:
    def check(self, keys):
        store, until = dist.HashStore(), time.monotonic() + 2.0
        while time.monotonic() < until:
            store.check(keys)  # gives the interpreter up and takes it again, all the time
        return False


failures._store = lambda group: Slow()
with failures.WATCHER.during(None):
    time.sleep(3 * failures.WATCH_SECONDS)
print("end", flush=True)
"""


def test_a_process_that_waited_ends_well():
    """A thread inside the store while Python ends would abort the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "end\n"
    assert done.returncode == 0, done.stderr
