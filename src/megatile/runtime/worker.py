"""The processes of a launch: ``python -m megatile.runtime.worker FOLDER MODULE`` forks one for every unit.

torch and the module are imported once, before the forks; ``MODULE.work(folder, unit, settings)`` is what each
process does. The folder holds what they need and the rendezvous; each process leaves its results there, or a
report of what went wrong, and its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from megatile.core.errors import MegatileError
from megatile.runtime.errors import PeerError

POLL_SECONDS = 0.02
AFTER_SECONDS = 30.0
"""How much later than the launcher the processes give up waiting: it says who is still at work."""


def main(folder: Path, module: str) -> None:
    """Fork the processes, leave their ids, and note how each of them ends; all end with the launcher."""
    settings = json.loads((folder / "settings").read_text(encoding="utf-8"))
    with _ending_with_launcher(folder):
        importlib.import_module("torch.distributed")
        job = importlib.import_module(module)
    units: dict[int, int] = {}
    signal.signal(signal.SIGTERM, lambda *_: _end(units))
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
    while units:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            write(folder / f"exit_{units.pop(child)}", os.waitstatus_to_exitcode(status))
        elif select.select([sys.stdin], [], [], POLL_SECONDS)[0]:  # it has closed: the launcher is gone
            _end(units)
            shutil.rmtree(folder, ignore_errors=True)
            return


def _end(units: dict[int, int]) -> None:
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


def write(path: Path, value: Any) -> None:
    """Write JSON in one go: whoever waits for the file finds all of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.rename(path)


def _work(job: Any, folder: Path, unit: int, settings: dict[str, Any]) -> int:
    """One process: join the others, do the job; the exit code."""
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
