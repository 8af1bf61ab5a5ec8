"""A pytest plugin (``-p tests.mutation.calls``): write which functions of megatile every test calls.

The file that ``MEGATILE_CALLS`` names gets ``{test: [seconds, ["plan/text.py:120", ...]]}``: the tests that
passed, how long each took, and the functions it called in this process, by file and first line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

CALLS: dict[str, tuple[float, list[str]]] = {}
FAILED: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions called by one test, its fixtures included."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        called.add(frame.f_code)

    begin = time.monotonic()
    threading.settrace(note)
    sys.settrace(note)
    yield
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    inside = [code for code in called if "/megatile/" in code.co_filename]
    names = {f"{code.co_filename.rpartition('/megatile/')[2]}:{code.co_firstlineno}" for code in inside}
    CALLS[item.nodeid] = (time.monotonic() - begin, sorted(names))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        FAILED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    passed = {test: what for test, what in CALLS.items() if test not in FAILED}
    Path(os.environ["MEGATILE_CALLS"]).write_text(json.dumps(passed), encoding="utf-8")
