"""``launch(plan, inputs)``: run a Plan on real processes, one per unit, over torch.distributed (gloo).

    results = launch(plan, inputs={"x": x})          # the same arrays that execute(plan, inputs) gives
    results.seconds                                   # how long the slowest process took

Sends and receives become messages between processes, groups process groups, commands the torch rules of their
operations. A process that dies ends the others, and the error names it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import megatile
from megatile.core.dtypes import numpy_dtype
from megatile.core.errors import did_you_mean
from megatile.core.operations import cast
from megatile.plan.execute import Results
from megatile.plan.model import Plan, PlanError, Tile
from megatile.runtime.errors import LaunchError, MissingTorchError

POLL_SECONDS = 0.02
GRACE_SECONDS = 0.5
"""How long to wait for other reports after the first failure, so that the one at fault is named."""


class LaunchResults(Results):
    """Outputs as ``execute`` gives them; ``seconds``: the time of the slowest process, without its start."""

    seconds: float = 0.0


def launch(
    plan: Plan,
    nproc: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    timeout: float = 120.0,
    repeat: int = 1,
    threads: int | None = None,
    started: Callable[[list[int]], None] | None = None,
) -> LaunchResults:
    """Run a plan on ``nproc`` processes (one per unit) and return its outputs, [owners, *tile shape].

    ``timeout`` (seconds) bounds the whole run; ``repeat`` runs it several times and keeps the best time;
    ``threads`` are those of one process (the cores divided among them, unless given). ``started`` is called
    with the process ids. A failure raises :class:`LaunchError` with the ``units`` at fault.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingTorchError("launch needs torch", advice="pip install 'megatile[torch]'")
    if nproc is not None and nproc != plan.units:
        raise LaunchError(
            f"plan '{plan.name}' is for {plan.units} units, not {nproc} processes",
            advice=f"every unit is one process: build the plan for {nproc} units, or use nproc={plan.units}",
        )
    if not hasattr(os, "fork"):
        raise LaunchError("launch needs a system that can fork processes")
    settings = {
        "units": plan.units,
        "timeout": timeout,
        "repeat": max(1, repeat),
        "threads": threads or max(1, (os.cpu_count() or 1) // plan.units),
    }
    with tempfile.TemporaryDirectory(prefix="megatile-") as name:
        folder = Path(name)
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
        _write_inputs(plan, inputs or {}, folder)
        _run(plan, folder, timeout, started)
        return _results(plan, folder)


def _write_inputs(plan: Plan, inputs: Mapping[str, Any], folder: Path) -> None:
    known = {t.name: (n, t) for n, t in enumerate(plan.tiles) if t.role in ("input", "inout")}
    for name in inputs:
        if name not in known:
            raise PlanError(f"'{name}' is no input of the plan", advice=did_you_mean(name, known, what="inputs"))
    for name, (number, tile) in known.items():
        if name not in inputs:
            raise PlanError(f"input '{name}' is missing")
        array = _array(plan, tile, inputs[name])
        for unit in range(plan.units):
            owner = int(tile.owner.evaluate({"unit": unit}))
            (folder / f"in_{number}_{unit}").write_bytes(np.ascontiguousarray(array[owner]).tobytes())


def _array(plan: Plan, tile: Tile, data: Any) -> Any:
    array = np.stack([np.asarray(d) for d in data]) if isinstance(data, (list, tuple)) else np.asarray(data)
    expected = (plan.owners(tile), *tile.shape)
    if array.shape != expected:
        raise PlanError(f"input '{tile.name}' has shape {array.shape}, not {expected} (owners, then the tile)")
    return cast(array, tile.dtype)


def _run(plan: Plan, folder: Path, timeout: float, started: Callable[[list[int]], None] | None) -> None:
    """Start the processes and watch them; none of them is left at the end."""
    environment = dict(os.environ)
    source = str(Path(megatile.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join([source, *filter(None, [environment.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "megatile.runtime.worker", str(folder)]
    with (folder / "output").open("wb") as output:
        parent = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _watch(plan, parent, folder, timeout, started)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def _watch(
    plan: Plan,
    parent: subprocess.Popen[bytes],
    folder: Path,
    timeout: float,
    started: Callable[[list[int]], None] | None,
) -> None:
    """Wait for all processes; raise as soon as one has failed, or when the time is over."""
    end = time.monotonic() + timeout
    while True:
        ended = parent.poll() is not None
        codes = [_read(folder / f"exit_{unit}") for unit in range(plan.units)]
        if all(code == 0 for code in codes):
            return
        if any(codes):
            time.sleep(GRACE_SECONDS)
            raise _failure(plan, [_read(folder / f"exit_{unit}") for unit in range(plan.units)], folder)
        if ended:
            raise LaunchError(f"the processes could not be started{_last_words(folder / 'output')}")
        if time.monotonic() > end:
            late = tuple(unit for unit, code in enumerate(codes) if code is None)
            raise LaunchError(
                f"plan '{plan.name}' did not finish within {timeout:g} s: {_names(late)} still at work",
                units=late,
                advice="give a larger timeout=, or check(plan) for a deadlock",
            )
        if started is not None and (pids := _read(folder / "pids")) is not None:
            started(pids)
            started = None
        time.sleep(POLL_SECONDS)


def _read(path: Path) -> Any:
    """A JSON file that a process left, or None."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _failure(plan: Plan, codes: Sequence[int | None], folder: Path) -> LaunchError:
    """The error that names the units at fault: those that died, else those that failed by themselves."""
    failed = [unit for unit, code in enumerate(codes) if code]
    reports = {unit: _read(folder / f"error_{unit}") for unit in failed}
    dead = [unit for unit in failed if reports[unit] is None]
    guilty = dead or [unit for unit in failed if reports[unit]["own"]] or failed
    first = guilty[0]
    if first in dead:
        reason = f"ended {_how(codes[first])}{_last_words(folder / f'output_{first}')}"
    else:
        reason = reports[first]["text"]
    more = f" (also {_names(tuple(guilty[1:]))})" if len(guilty) > 1 else ""
    return LaunchError(f"{_names((first,))} of plan '{plan.name}': {reason}{more}", units=tuple(guilty))


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _last_words(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def _names(units: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, units[:8])) + (", …" if len(units) > 8 else "")
    return f"unit {shown}" if len(units) == 1 else f"units {shown}"


def _results(plan: Plan, folder: Path) -> LaunchResults:
    done = [_read(folder / f"done_{unit}") for unit in range(plan.units)]
    arrays = {}
    for number, tile in enumerate(plan.tiles):
        if tile.role in ("output", "inout"):
            kind = numpy_dtype(tile.dtype)
            parts = [np.frombuffer((folder / f"out_{number}_{u}").read_bytes(), kind) for u in range(plan.units)]
            arrays[tile.name] = np.stack([part.reshape(tile.shape) for part in parts])
    choices = {u: report["choices"] for u, report in enumerate(done) if report["choices"]}
    results = LaunchResults(arrays, choices, ())
    results.seconds = max(report["seconds"] for report in done)
    return results
