"""How slow this computer is now: waits and limits of tests grow with it.

A limit says how long something may take on an idle computer, ``patience(limit)`` how long it may take now.
Limits tell a hang from progress; how fast something is, is measured in ``benchmarks/``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

START_SECONDS = 0.03
"""An idle computer starts a Python that does nothing in less."""
VALID_SECONDS = 5.0
"""How long a measurement counts."""

_last = {"at": float("-inf"), "slowness": 1.0}


def slowness() -> float:
    """Return how many times as long as on an idle computer things take now; at least 1."""
    if time.monotonic() - _last["at"] > VALID_SECONDS:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        took = (time.monotonic() - begun) / START_SECONDS
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
        _last.update(at=time.monotonic(), slowness=max(1.0, took, waiting))
    return _last["slowness"]


def patience(seconds: float) -> float:
    """Return how long something may take now that takes at most ``seconds`` on an idle computer."""
    return seconds * slowness()


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition as long as ``patience(seconds)`` is, and return whether it holds."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        if waited > seconds and waited > patience(seconds):
            return bool(condition())
        time.sleep(0.02)
    return True
