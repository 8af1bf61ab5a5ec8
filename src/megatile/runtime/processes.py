"""Starts processes, watches them, and says which one is at fault when something goes wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from megatile.runtime.errors import LaunchError, MissingTorchError, check_timeout, failure, how_ended, named

POLL_SECONDS = 0.02
GRACE_SECONDS = 0.5
"""How long to wait for other reports after the first failure, so that the one at fault is named."""
END_SECONDS = 2.0
Started = Callable[[list[int]], None]


def run_processes(
    module: str,
    folder: Path,
    units: int,
    *,
    what: str,
    timeout: float,
    threads: int | None = None,
    started: Started | None = None,
    poll: Callable[[], None] = lambda: None,
    **settings: Any,
) -> None:
    """``module.work(folder, unit, settings)`` in one process per unit, joined by gloo, until all are done.

    ``what`` names the job in errors; ``poll`` is called many times a second. A process that fails ends the
    others and raises :class:`LaunchError`. However this process ends, so do they: their standard
    input is a pipe that closes with it.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingTorchError("real processes need torch", advice="pip install 'megatile[torch]'")
    if not hasattr(os, "fork"):
        raise LaunchError("real processes need a system that can fork")
    check_timeout(timeout)
    share = threads or max(1, (os.cpu_count() or 1) // units)
    settings |= {"units": units, "timeout": timeout, "threads": share}
    (folder / "settings").write_text(json.dumps(settings), encoding="utf-8")
    environment = dict(os.environ)
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "megatile.runtime.worker", str(folder), module]
    with (folder / "output").open("wb") as output:
        parent = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _watch(what, units, parent, folder, timeout, started, poll)
    finally:
        _end(parent)


def _end(parent: subprocess.Popen[bytes]) -> None:
    """End all processes. Their parent does it when asked, so that none is left when it is gone itself."""
    parent.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        parent.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    if parent.stdin is not None:
        parent.stdin.close()


def read(path: Path) -> Any:
    """A JSON file that a process left, or None."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _watch(
    what: str,
    units: int,
    parent: subprocess.Popen[bytes],
    folder: Path,
    timeout: float,
    started: Started | None,
    poll: Callable[[], None],
) -> None:
    """Wait for all processes; raise as soon as one has failed, or when the time is over."""
    end = time.monotonic() + timeout
    while True:
        ended = parent.poll() is not None
        poll()
        codes = [read(folder / f"exit_{unit}") for unit in range(units)]
        if all(code == 0 for code in codes):
            return
        if any(codes):
            time.sleep(GRACE_SECONDS)
            raise _failure(what, [read(folder / f"exit_{unit}") for unit in range(units)], folder)
        if ended:
            raise LaunchError(
                f"the processes could not be started: what starts them {how_ended(parent.returncode)}"
                + _last_words(folder / "output")
            )
        if time.monotonic() > end:
            late = tuple(unit for unit, code in enumerate(codes) if code is None)
            raise LaunchError(
                f"{what} did not finish within {timeout:g} s: {named('unit', late)} still at work",
                units=late,
                advice="give a larger timeout=, or check(plan) for a deadlock",
            )
        if started is not None and (pids := read(folder / "pids")) is not None:
            started(pids)
            started = None
        time.sleep(POLL_SECONDS)


def _failure(what: str, codes: Sequence[int | None], folder: Path) -> LaunchError:
    found = {unit: read(folder / f"error_{unit}") for unit, code in enumerate(codes) if code}
    reports = {unit: report for unit, report in found.items() if report is not None}

    def death(unit: int) -> str:
        return how_ended(codes[unit]) + _last_words(folder / f"output_{unit}")

    return failure("unit", reports, [unit for unit in found if unit not in reports], death, f" of {what}")


def _last_words(output: Path) -> str:
    if not output.exists():  # it died before it said anything
        return ""
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""
