"""``sweep(plan, {"networks.nvlink.bandwidth": [...]}, machine=…)``: one plan on many machines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megatile.core.errors import MegatileError
from megatile.core.progress import Listener, shown
from megatile.core.quantities import format_time
from megatile.hda import HDA, machine as find_machine
from megatile.lowering.calls import is_program
from megatile.plan.model import Plan
from megatile.tuning.executors import workers_for
from megatile.tuning.search import examine_all, measure_all
from megatile.tuning.store import Store
from megatile.tuning.work import Choice, Outcome, Task, TuneError, machine_of, points_of


@dataclass(frozen=True)
class Sweep:
    """Times by machine parameters, in the order of the values."""

    machine: HDA
    points: tuple[dict[str, Any], ...]
    outcomes: tuple[Outcome, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The parameters with the time and the name of its model, or why there is none."""
        found = zip(self.points, self.outcomes, strict=True)
        return [
            {**p, "time_us": None if o.value is None else o.value / 1e6, "model": o.model, "why": o.why}
            for p, o in found
        ]

    def __repr__(self) -> str:
        times = [o.value for o in self.outcomes if o.value is not None]
        spread = f"{format_time(min(times))} to {format_time(max(times))}" if times else "no times"
        return f"Sweep({len(self.points)} machines like {self.machine.name}: {spread})"


def _make(target: Any, machine: HDA | str, trust: bool, choice: Choice) -> tuple[Any, HDA]:
    """The plan, program or what a function makes for the machine, on the machine with its parameters set."""
    hda = find_machine(machine, trust=trust, **choice)
    return (target if isinstance(target, Plan) or is_program(target) else target(hda)), hda


def sweep(
    target: Plan | Callable[[HDA], Any] | Any,
    over: Mapping[str, Sequence[Any]] | Sequence[Choice],
    *arguments: Any,
    machine: HDA | str,
    store: str | Path | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: bool | Listener = True,
    trust: bool = False,
) -> Sweep:
    """Time a Plan, a ``T`` program, or what ``target(hda)`` makes, on a machine with parameters set.

    ``over`` has values by parameter (``nodes``) or path (``networks.nvlink.bandwidth``), of which all
    combinations are meant. ``store``, ``executor`` and ``workers`` are those of `tune`. A machine on which
    the plan cannot run is a row that says why. ``trust`` is that of `machine`.
    """
    points = points_of(over)
    base = machine_of(machine, trust)
    if not (isinstance(target, Plan) or callable(target) or is_program(target)):
        raise TuneError(
            f"{target!r} is no plan", advice="give a Plan, a T program, or a function of the machine"
        )
    find_machine(machine, trust=trust, **points[0])  # a wrong name is said at once
    task = Task(partial(_make, target, machine, trust), points, arguments=arguments, refuses=(MegatileError,))
    with Store(store) as known, workers_for(task, executor, workers) as crew, shown("sweeping", progress):
        outcomes = examine_all(task, crew)
        measure_all(outcomes, range(len(outcomes)), crew, known)
    return Sweep(base, tuple(points), tuple(outcomes))
