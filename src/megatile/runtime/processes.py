"""Starts processes, watches them, and says which one is at fault when something goes wrong.

``run_processes`` is the launcher's side; ``python -m megatile.runtime.processes FOLDER MODULE`` forks one
process for every unit, which does ``MODULE.work(folder, unit, settings)``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.stopped import StopWatch
from megatile.runtime.errors import (
    LaunchError,
    MissingTorchError,
    PeerError,
    check_timeout,
    failure,
    how_ended,
    named,
)

POLL_SECONDS = 0.02
"""Time between two looks at the processes."""
GRACE_SECONDS = 0.5
"""How long to wait for other reports after the first failure, so that the one at fault is named."""
END_SECONDS = 2.0
"""Time that processes get to end before they are killed."""
AFTER_SECONDS = 30.0
"""How much later than the launcher the processes give up waiting: it says who is still at work."""
Started = Callable[[list[int]], None]


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Make one sentence of a disk that is full or cannot be written."""
    try:
        yield
    except OSError as problem:
        raise LaunchError(
            f"files for the processes cannot be written: {problem.strerror or problem}",
            advice="set TMPDIR to a folder with free space",
        ) from None


@contextlib.contextmanager
def job_folder() -> Iterator[Path]:
    """A folder for the files of processes, which is gone at the end."""
    with disk_errors():
        folder = tempfile.TemporaryDirectory(prefix="megatile-")
    with folder as name:
        yield Path(name)


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
    with disk_errors():
        (folder / "settings").write_text(json.dumps(settings), encoding="utf-8")
    environment = dict(os.environ)
    source = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "megatile.runtime.processes", str(folder), module]
    with (folder / "output").open("wb") as output:
        try:
            parent = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as problem:
            raise LaunchError(
                f"the processes could not be started: {problem}", advice="end others, or raise the limit"
            ) from None
    try:
        _watch(what, units, parent, folder, timeout, started, poll)
    finally:
        _end(parent)


def _end(parent: subprocess.Popen[bytes]) -> None:
    """End all processes. Their parent does it when asked, so that none is left when it is gone itself."""
    parent.terminate()
    parent.send_signal(signal.SIGCONT)  # who is stopped cannot end
    with contextlib.suppress(subprocess.TimeoutExpired):
        parent.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()
    if parent.stdin is not None:
        parent.stdin.close()


def read(path: Path) -> Any:
    """Return a JSON file that a process left, or None."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write(path: Path, value: Any) -> None:
    """Write JSON atomically: a reader that waits for the file finds all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.rename(path)


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
    end, stopped = time.monotonic() + timeout, StopWatch()
    while True:
        if stopped.lost([parent.pid]):
            raise LaunchError("the parent of the processes was stopped", advice="let it run, or start again")
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
                f"the processes could not be started: their parent process {how_ended(parent.returncode)}"
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


def main(folder: Path, module: str) -> None:
    """Fork the processes, leave their ids, and note how each of them ends; all end with the launcher.

    torch and the module are imported once, before the forks. The folder holds what they need and the
    rendezvous; each process leaves its results there, or a report of what went wrong, and its exit code.
    """
    settings = read(folder / "settings")
    with _ending_with_launcher(folder):
        importlib.import_module("torch.distributed")
        job = importlib.import_module(module)
    units: dict[int, int] = {}
    signal.signal(signal.SIGTERM, lambda *_: _kill(units))
    for unit in range(settings["units"]):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            threading.Thread(target=_end_with_launcher, daemon=True).start()
            output = os.open(folder / f"output_{unit}", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = _work(job, folder, unit, settings)
            sys.stdout.flush()
            os._exit(code)
        units[child] = unit
    write(folder / "pids", list(units))
    stopped, lost = StopWatch(), set[int]()
    while units:
        for child in stopped.lost(units):
            lost.add(child)
            os.kill(child, signal.SIGKILL)
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            code = -signal.SIGSTOP if child in lost else os.waitstatus_to_exitcode(status)
            write(folder / f"exit_{units.pop(child)}", code)
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0]:  # it has closed: the launcher is gone
            _kill(units)
            shutil.rmtree(folder, ignore_errors=True)
            return


def _kill(units: dict[int, int]) -> None:
    """End what was forked; ``main`` goes on to collect them, then ends too."""
    for child in units:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@contextlib.contextmanager
def _ending_with_launcher(folder: Path) -> Iterator[None]:
    """While the block runs (imports take seconds), end as soon as the launcher is gone. The thread that looks
    has ended after it: none may run while processes are forked."""
    done, enough = os.pipe()

    def watch() -> None:
        if sys.stdin in select.select([sys.stdin, done], [], [])[0]:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        os.write(enough, b"x")
        watching.join()
        os.close(done)
        os.close(enough)


def _end_with_launcher() -> None:
    """Also when the parent of this process is gone already."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGKILL)


def _work(job: Any, folder: Path, unit: int, settings: dict[str, Any]) -> int:
    """Return one process: join the others, do the job; the exit code."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(settings["threads"])
    try:
        store = dist.FileStore(str(folder / "rendezvous"), settings["units"])
        limit = timedelta(seconds=settings["timeout"] + AFTER_SECONDS)
        dist.init_process_group("gloo", store=store, rank=unit, world_size=settings["units"], timeout=limit)
        job.work(folder, unit, settings)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        _report(folder, unit, error)
        return 1
    return 0


def _report(folder: Path, unit: int, error: BaseException) -> None:
    """``own``: this process is at fault, not one it talked to."""
    own = not isinstance(error, PeerError)
    text = str(error) if isinstance(error, MegatileError) else "".join(traceback.format_exception_only(error))
    write(folder / f"error_{unit}", {"own": own, "text": text.strip(), "trace": traceback.format_exc()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # at once: what torch does at the end of a process takes a while
