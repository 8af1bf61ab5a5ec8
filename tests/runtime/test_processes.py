"""``runtime/processes.py``: starts processes, watches them, and says which one is at fault when something
goes wrong."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from tests.patience import patience
from tests.runtime.launch_cases import mixed_plan, waiting_plan

from megatile.runtime.errors import LaunchError
from megatile.runtime.launch import launch


def test_a_process_that_dies_ends_the_others_and_is_named():
    pytest.importorskip("torch")
    victim = []

    def kill_one(pids):
        victim.extend(pids)
        time.sleep(1.0)
        os.kill(pids[1], signal.SIGKILL)

    start, limit = time.monotonic(), patience(100)
    with pytest.raises(LaunchError, match="unit 1 of plan 'waiting': ended by signal SIGKILL") as caught:
        launch(waiting_plan(), inputs={"x": np.zeros((3, 1))}, timeout=limit, started=kill_one)
    assert caught.value.units == (1,)
    assert time.monotonic() - start < 0.9 * limit
    for pid in victim:  # none is left, not even for a moment
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("victim", "moment"), [(0, 0.0), (2, 0.0), (1, 0.7)])
def test_a_process_may_die_before_the_others_have_met_or_while_they_work(victim, moment):
    """At moment 0 no process has joined the others yet; later they run a plan of messages again and again."""
    pytest.importorskip("torch")
    processes = []

    def kill_one(pids):
        processes.extend(pids)
        kill = threading.Timer(moment, os.kill, (pids[victim], signal.SIGKILL))
        kill.start() if moment else kill.function(*kill.args)

    plan, x = mixed_plan(3), np.ones((3, 4, 6))
    inputs = {"x": x, "n": np.array([[0], [2], [3]])}
    with pytest.raises(
        LaunchError, match=f"^unit {victim} of plan 'mixed': ended by signal SIGKILL"
    ) as error:
        launch(plan, inputs=inputs, timeout=patience(60), repeat=10**6, started=kill_one)
    assert error.value.units == (victim,)
    for pid in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_plan_that_never_ends_is_stopped_and_its_units_named():
    pytest.importorskip("torch")
    with pytest.raises(LaunchError, match=r"did not finish within 0.3 s: units 0, 1, 2 still at work"):
        launch(waiting_plan(), inputs={"x": np.zeros((3, 1))}, timeout=0.3)


def test_a_system_without_further_processes_is_named(monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("subprocess.Popen", fails)
    with pytest.raises(LaunchError, match=r"could not be started: .*temporarily unavailable.*end others"):
        launch(mixed_plan(2), {"x": np.ones((2, 4, 6)), "n": np.ones((2, 1), "i4")})
