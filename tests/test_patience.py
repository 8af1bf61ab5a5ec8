"""Limits grow with the time that this computer takes."""

import subprocess
import time

import pytest
from tests import patience as subject


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_last", {"at": float("-inf"), "slowness": 1.0})
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))


def test_limits_grow_with_the_start_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: time.sleep(4 * subject.START_SECONDS))
    assert subject.patience(10.0) >= 40.0


def test_limits_grow_with_the_processes_that_wait_for_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    assert subject.slowness() == 1.0
    assert subject.patience(10.0) == 10.0
    monkeypatch.setattr("os.getloadavg", lambda: (12.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert subject.patience(10.0) == 10.0  # what was just measured counts
    subject._last["at"] = float("-inf")
    assert subject.patience(10.0) == 60.0


def test_waiting_ends_with_the_condition_or_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    begun = time.monotonic()
    assert subject.wait_until(lambda: time.monotonic() - begun > 0.05, 60.0)
    assert not subject.wait_until(lambda: False, 0.05)
