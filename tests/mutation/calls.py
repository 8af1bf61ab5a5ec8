"""A pytest plugin (``-p tests.mutation.calls``): write which functions of megatile every test calls.

The file that ``MEGATILE_CALLS`` names gets ``{test: [seconds, ["plan/text.py:120", ...]]}``: the tests that
passed, the processor time of each, and the functions it called in this process, by file and first line. A
test that takes more than MAX_SECONDS is ended there and counts as SLOW seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

MAX_SECONDS = 3.0
"""Processor time after which a test is not looked at any further."""
SLOW = 30.0
"""Seconds that such a test is taken to last."""
CALLS: dict[str, tuple[float, list[str]]] = {}
FAILED: set[str] = set()


class TooLong(BaseException):
    """A test took more than its time."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions called by one test, its fixtures included."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        called.add(frame.f_code)

    begin = time.process_time(), time.monotonic()
    threading.settrace(note)
    sys.settrace(note)
    yield
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    inside = [code for code in called if "/megatile/" in code.co_filename]
    names = {f"{code.co_filename.rpartition('/megatile/')[2]}:{code.co_firstlineno}" for code in inside}
    # What waits for other processes takes a part of their time.
    seconds = max(time.process_time() - begin[0], (time.monotonic() - begin[1]) / 4)
    CALLS[item.nodeid] = (SLOW if item.nodeid in CALLS else seconds, sorted(names))
    if CALLS[item.nodeid][0] == SLOW:
        FAILED.discard(item.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """End what takes too long."""

    def stop(*_: object) -> None:
        CALLS[item.nodeid] = (SLOW, [])
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    passed = {test: what for test, what in CALLS.items() if test not in FAILED}
    Path(os.environ["MEGATILE_CALLS"]).write_text(json.dumps(passed), encoding="utf-8")
