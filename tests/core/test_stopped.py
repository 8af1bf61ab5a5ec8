"""``core/stopped.py``: stopped child processes are found, and workers of pools do not hang."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from tests.patience import wait_until

from megatile.core import stopped
from megatile.core.stopped import StopWatch, first_done

pytestmark = pytest.mark.skipif(not hasattr(os, "waitid"), reason="the system does not tell who is stopped")


def test_only_who_is_stopped_for_long_is_lost(monkeypatch):
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 0.2)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        watch = StopWatch()
        assert watch.lost([child.pid]) == []
        child.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: watch.lost([child.pid]) == [child.pid], 5)
        child.send_signal(signal.SIGCONT)
        assert wait_until(lambda: watch.lost([child.pid]) == [], 5)
        child.send_signal(signal.SIGSTOP)
        assert watch.lost([child.pid]) == []  # the time before does not count
    finally:
        child.kill()
        child.communicate()
    assert watch.lost([child.pid]) == []


def test_a_stopped_worker_breaks_its_pool(monkeypatch):
    monkeypatch.setattr(stopped, "STOPPED_SECONDS", 0.2)
    monkeypatch.setattr(stopped, "LOOK_SECONDS", 0.05)
    with ProcessPoolExecutor(2) as pool:
        pids = {pool.submit(os.getpid).result()}
        waiting = {pool.submit(time.sleep, 600) for _ in range(2)}
        os.kill(*pids, signal.SIGSTOP)
        with pytest.raises(BrokenExecutor, match=rf"a worker \(process {min(pids)}\) was stopped"):
            first_done(pool, waiting, StopWatch())


def test_the_first_result_or_the_end_of_the_time():
    with ThreadPoolExecutor(1) as pool:
        quick = pool.submit(int)
        slow = pool.submit(time.sleep, 0.2)
        assert first_done(pool, {quick, slow}, StopWatch()) == {quick}
        with pytest.raises(TimeoutError):
            first_done(pool, {slow}, StopWatch(), time.monotonic() + 0.05)
    assert first_done(pool, set(), StopWatch()) == set()
