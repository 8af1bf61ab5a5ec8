"""``launch(plan, inputs)``: run a Plan on real processes, one per unit, over torch.distributed (gloo).

    results = launch(plan, inputs={"x": x})          # the same arrays that execute(plan, inputs) gives
    results.seconds                                   # how long the slowest process took

Sends and receives become messages between processes, groups process groups, commands the torch rules of their
operations. A process that dies ends the others, and the error names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from megatile.core.quantities import whole
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.plan.execute import Results
from megatile.plan.model import Plan, PlanError, Tile, require_plan
from megatile.plan.storage import allocate, read_inputs
from megatile.runtime.errors import LaunchError
from megatile.runtime.processes import Started, disk_errors, job_folder, read, run_processes

TIMEOUT = 120.0
"""Seconds that a launch may take."""


class LaunchResults(Results):
    """Outputs as ``execute`` gives them; ``seconds``: the time of the slowest process, without its start."""

    seconds: float = 0.0


@overload
def launch(
    plan: ProgramFunction | Program,
    *arrays: Any,
    machine: str | HDA | None = None,
    processes: int | None = None,
    timeout: float = TIMEOUT,
    started: Started | None = None,
) -> float: ...
@overload
def launch(
    plan: Plan,
    *given: Any,
    nproc: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    repeat: int | None = None,
    threads: int | None = None,
    started: Started | None = None,
) -> LaunchResults: ...
def launch(
    plan: ProgramFunction | Program | Plan,
    *given: Any,
    machine: str | HDA | None = None,
    processes: int | None = None,
    nproc: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
    repeat: int | None = None,
    threads: int | None = None,
    started: Started | None = None,
) -> float | LaunchResults:
    """Run on real processes: a Plan (``launch_plan``), or a tile program on arrays (``launch_program``).

    ``launch(plan, {…})`` returns the plan's outputs, as ``execute`` does; ``nproc``, ``inputs``, ``repeat``
    and ``threads`` are for Plans. ``launch(program, *arrays, machine=…, processes=n)`` leaves results in the
    arrays and returns the seconds; without ``machine`` it is built for this computer.
    """
    of_plans: dict[str, Any] = {"nproc": nproc, "inputs": inputs, "repeat": repeat, "threads": threads}
    of_programs = {"machine": machine, "processes": processes}
    program = isinstance(plan, (ProgramFunction, Program))
    kind, own, other = ("program", of_programs, of_plans) if program else ("plan", of_plans, of_programs)
    for name, value in other.items():
        if value is not None:
            raise LaunchError(
                f"launch of a {kind} has no argument '{name}'",
                advice=f"it has {', '.join(own)}, timeout and started",
            )
    if isinstance(plan, (ProgramFunction, Program)):
        from megatile.runtime.launch_program import launch_program

        where = "cpu" if machine is None else machine
        return launch_program(
            plan, *given, machine=where, processes=processes, timeout=timeout, started=started
        )
    named = {name: value for name, value in of_plans.items() if value is not None}
    return launch_plan(plan, *given, **named, timeout=timeout, started=started)


def launch_plan(
    plan: Plan,
    nproc: int | Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    *,
    timeout: float = TIMEOUT,
    repeat: int = 1,
    threads: int | None = None,
    started: Started | None = None,
) -> LaunchResults:
    """Run a plan on ``nproc`` processes (one per unit) and return its outputs, [owners, *tile shape].

    ``nproc`` may be left out: ``launch(plan, inputs)``, like ``execute(plan, inputs)``.
    ``timeout`` (seconds) bounds the whole run; ``repeat`` runs it several times and keeps the best time;
    ``threads`` are those of one process (the cores divided among them, unless given). ``started`` is called
    with the process ids. A failure raises :class:`LaunchError` with the ``units`` at fault.
    """
    require_plan(plan, "launch")
    for level in plan.levels:
        if plan.per(level.name, None) is None:
            raise PlanError(
                f"level '{level.name}' of plan '{plan.name}' is below no unit: no process runs it"
            )
    if isinstance(nproc, Mapping) and inputs is None:
        nproc, inputs = None, nproc
    if nproc is not None and whole(nproc) is None:
        raise LaunchError(
            f"nproc is a {type(nproc).__name__}, not a number of processes",
            advice="launch(plan, inputs) or launch(plan, nproc, inputs)",
        )
    if nproc is not None and nproc != plan.units:
        raise LaunchError(
            f"plan '{plan.name}' is for {plan.units} units, not {nproc} processes",
            advice=f"every unit is one process: build the plan for {nproc} units, or use nproc={plan.units}",
        )
    with job_folder() as folder:
        with disk_errors():
            (folder / "plan").write_text(plan.to_json(), encoding="utf-8")
            _write_inputs(plan, inputs or {}, folder)
        run_processes(
            "megatile.runtime.plan_work",
            folder,
            plan.units,
            what=f"plan '{plan.name}'",
            timeout=timeout,
            threads=threads,
            started=started,
            repeat=max(1, repeat),
        )
        return _results(plan, folder)


def _write_inputs(plan: Plan, inputs: Mapping[str, Any], folder: Path) -> None:
    names = [tile.name for tile in plan.tiles]
    for tile, array in read_inputs(plan, inputs):
        for unit in range(plan.units):
            owner = int(tile.owner.evaluate({"unit": unit}))
            path = folder / f"in_{names.index(tile.name)}_{unit}"
            path.write_bytes(np.ascontiguousarray(array[owner]).tobytes())


def _output(plan: Plan, tile: Tile, folder: Path, number: int) -> Any:
    """Return a tile of all owners; copies that no unit owns are as ``execute`` leaves them."""
    array = allocate(plan, replace(tile, versions=1), None)[:, 0]
    for unit in range(plan.units):
        data = np.frombuffer((folder / f"out_{number}_{unit}").read_bytes(), array.dtype)
        array[int(tile.owner.evaluate({"unit": unit}))] = data.reshape(tile.shape)
    return array


def _results(plan: Plan, folder: Path) -> LaunchResults:
    done = [read(folder / f"done_{unit}") for unit in range(plan.units)]
    arrays = {
        tile.name: _output(plan, tile, folder, number)
        for number, tile in enumerate(plan.tiles)
        if tile.role in ("output", "inout")
    }
    choices = {u: report["choices"] for u, report in enumerate(done) if report["choices"]}
    results = LaunchResults(arrays, choices, ())
    results.seconds = max(report["seconds"] for report in done)
    return results
