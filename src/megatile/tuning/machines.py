"""``sweep(plan, {"networks.nvlink.bandwidth": [...]}, machine=…)``: one plan on many machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast, overload

from megatile.core.errors import MegatileError
from megatile.core.progress import Listener, shown
from megatile.core.quantities import format_time
from megatile.core.rows import HasRows
from megatile.hda import HDA, machine as find_machine
from megatile.lowering.calls import is_program
from megatile.plan.model import Plan
from megatile.tuning.best_on_machines import TunedSweep, best_on_each, task_of
from megatile.tuning.executors import workers_for
from megatile.tuning.search import check_factory, examine_all, measure_all
from megatile.tuning.store import Store
from megatile.tuning.work import Choice, Outcome, Task, TuneError, machine_of, points_of


@dataclass(frozen=True)
class Sweep(HasRows):
    """Times by machine parameters, in the order of the values."""

    machine: HDA
    points: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...]

    def rows(self) -> list[dict[str, Any]]:
        """Return the parameters with the time, the name of its model and what changed, or why there is
        none."""
        found = zip(self.points, self.outcomes, strict=True)
        return [
            {
                **p,
                "time_us": None if o.value is None else o.value / 1e6,
                "model": o.model,
                "note": o.note,
                "why": o.why,
            }
            for p, o in found
        ]

    def __repr__(self) -> str:
        times = [o.value for o in self.outcomes if o.value is not None]
        spread = f"{format_time(min(times))} to {format_time(max(times))}" if times else "no times"
        return f"Sweep({len(self.points)} machines like {self.machine.name}: {spread})"


def _make(target: Any, machine: HDA | str, trust: bool, choice: Choice) -> tuple[Any, HDA]:
    """Return the plan, program or what a function makes for the machine, on the machine with its parameters
    set."""
    hda = find_machine(machine, trust=trust, **choice)
    return (target if isinstance(target, Plan) or is_program(target) else target(hda)), hda


@overload
def sweep(
    target: Plan | Callable[[HDA], Any] | Any,
    over: Mapping[str, Sequence[Any]] | Sequence[Choice],
    *arguments: Any,
    machine: HDA | str,
    tune: None = None,
    store: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Listener = True,
    trust: bool = False,
) -> Sweep: ...


@overload
def sweep(
    target: Plan | Callable[[HDA], Any] | Any,
    over: Mapping[str, Sequence[Any]] | Sequence[Choice],
    *arguments: Any,
    machine: HDA | str,
    tune: Mapping[str, Sequence[Any]] | Sequence[Choice],
    store: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Listener = True,
    trust: bool = False,
) -> TunedSweep: ...


def sweep(
    target: Plan | Callable[[HDA], Any] | Any,
    over: Mapping[str, Sequence[Any]] | Sequence[Choice],
    *arguments: Any,
    machine: HDA | str,
    tune: Mapping[str, Sequence[Any]] | Sequence[Choice] | None = None,
    store: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Listener = True,
    trust: bool = False,
) -> Sweep | TunedSweep:
    """Return time a Plan, a ``T`` program, or what ``target(hda)`` makes, on a machine with parameters set.

    ``over`` has values by parameter (``nodes``) or path (``networks.nvlink.bandwidth``), of which all
    combinations are meant. ``store``, ``executor`` and ``workers`` are those of `tune`. A machine on which
    the plan cannot run is a row that says why. ``trust`` is that of `machine`.

    With ``tune``, choices as those of `mt.tune`, ``target`` is a factory, and the fastest choice is found on
    every machine; the `TunedSweep` has its time beside that of the first choice, and marks the knee.
    """
    points = points_of(over)
    base = machine_of(machine, trust)
    if not (isinstance(target, Plan) or callable(target) or is_program(target)):
        raise TuneError(
            f"{target!r} is not a plan", advice="give a Plan, a T program, or a function of the machine"
        )
    find_machine(machine, trust=trust, **points[0])  # a wrong name is said at once
    if tune is not None:
        check_factory(target, points_of(tune))
        task, choices = task_of(cast("Callable[..., Any]", target), points, tune, arguments, machine, trust)
        with Store(store) as known, workers_for(task, executor, workers) as crew, shown("tuning", progress):
            found = best_on_each(task, choices, crew, known)
        return TunedSweep(base, tuple(points), tuple(choices), found)
    task = Task(partial(_make, target, machine, trust), points, arguments=arguments, refuses=(MegatileError,))
    with Store(store) as known, workers_for(task, executor, workers) as crew, shown("sweeping", progress):
        outcomes = examine_all(task, crew)
        measure_all(outcomes, range(len(outcomes)), crew, known)
    return Sweep(base, tuple(points), tuple(outcomes))
