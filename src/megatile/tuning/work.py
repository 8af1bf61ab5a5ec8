"""What a worker does for one point of a search: make the plan, see whether it fits, bound it, time it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import Any

from megatile.core.cached import cached
from megatile.core.errors import MegatileError
from megatile.cost.price import lower_bound
from megatile.cost.static_bound import floor
from megatile.cost.wave_bound import wave_bound
from megatile.hda import HDA, machine as find_machine
from megatile.ir.passes.coverage import unreached
from megatile.language.tile.capacity import crowded_threads
from megatile.lowering.calls import is_program
from megatile.lowering.lowered import lower
from megatile.plan.memory import check_memory
from megatile.plan.model import Plan
from megatile.sim import TimeBudgetExceeded, simulate
from megatile.sim.result import Result
from megatile.timing.transports import model_of

MAX_POINTS = 1_000_000
"""Combinations of one search."""
TIMING_CODE = ("hda", "plan", "sim", "timing")
"""Folders whose code decides how long a plan takes on a machine."""
Choice = Mapping[str, Any]
Objective = Callable[[Result], float]


class TuneError(MegatileError, ValueError):
    """A search that cannot be done, or that found nothing; says why."""


@dataclass(frozen=True)
class Outcome:
    """What is known of one point; ``why`` it was refused, where it was."""

    index: int
    key: str = ""
    bound: float = 0.0
    value: float | None = None
    why: str = ""
    model: str = ""
    """The name of the timing model of its communication."""
    note: str = ""
    """What lowering changed: ``stages 3 -> 1: shared``."""
    unfit: str = ""
    """Why it should not win: a part of an argument that it never reads or writes, tiles that would spill."""


@dataclass(frozen=True)
class Task:
    """The points of a search and how one becomes a plan on a machine; sent to workers as it is.

    ``make(choice)`` gives a plan or a tile program and the machine. ``objective`` None is the time, which the
    lower bound bounds.
    """

    make: Callable[[Choice], tuple[Any, HDA]]
    points: Sequence[Choice]
    objective: Objective | None = None
    arguments: tuple[Any, ...] = ()
    """Arrays or shapes for tile programs."""
    refuses: tuple[type[Exception], ...] = field(default=(MegatileError, ValueError, AssertionError))
    """What says that a choice is none."""

    def plan(self, index: int) -> tuple[Plan, HDA]:
        plan, hda, _, _ = self._plan(index)
        return plan, hda

    def _plan(self, index: int) -> tuple[Plan, HDA, str, str]:
        made, hda = self.make(self.points[index])
        if isinstance(made, Plan) or not is_program(made):
            return plan_of(made, hda, self.arguments), hda, "", ""
        low = lower(made, *self.arguments, machine=hda)
        doubts = chain(unreached(low.source), crowded_threads(hda, low.source))
        unfit = next((f"{span}: {text} (try: {advice})" for text, span, advice in doubts), "")
        return low.plan, hda, low.shallower, unfit

    def examine(self, index: int) -> Outcome:
        """Return whether a point is possible, its key, and a lower bound of its time in picoseconds."""
        try:
            plan, hda, note, unfit = self._plan(index)
            check_memory(plan, hda)
            bound = 0.0 if self.objective else float(_bound(plan, hda))
        except TimeBudgetExceeded:
            raise
        except self.refuses as problem:
            return Outcome(index, why=_first_line(problem))
        kind = "time" if self.objective is None else _name(self.objective)
        text = f"{code_digest()} {plan.digest} {hda.fingerprint()} {kind}"
        key = hashlib.sha256(text.encode()).hexdigest()
        return Outcome(index, key, bound, model=model_of(plan, hda), note=note, unfit=unfit)

    def measure(self, index: int) -> float:
        """Return the point's objective: its simulated time in picoseconds."""
        plan, hda = self.plan(index)
        result = simulate(plan, machine=hda, record=self.objective is not None)
        return float(result.time_ps if self.objective is None else self.objective(result))


def _bound(plan: Plan, hda: HDA) -> int:
    """Return a lower bound of a plan's time. Of units that do the same one is run, which is short; of
    instances in slots, which would all be run, at most one."""
    return max(floor(plan, hda), wave_bound(plan, hda)) if plan.levels else lower_bound(plan, hda)


@cached(most=1)
def code_digest() -> str:
    """Return what tells one state of the code that times plans from another, within a release too."""
    found = hashlib.sha256()
    for folder in TIMING_CODE:
        for file in sorted((Path(__file__).parents[1] / folder).rglob("*.py")):
            found.update(f"{folder}/{file.name}\0".encode() + file.read_bytes())
    return found.hexdigest()


def machine_of(machine: Any, trust: bool = False) -> HDA:
    """Return the machine that is asked for by name, or given."""
    found = find_machine(machine, trust=trust) if isinstance(machine, str) else machine
    if not isinstance(found, HDA):
        raise TuneError(f"machine={machine!r} is not a machine", advice='machine="dgx-h100"')
    return found


def plan_of(made: Any, hda: HDA, arguments: tuple[Any, ...] = ()) -> Plan:
    """Return a plan as it is, a tile program lowered for the machine."""
    if isinstance(made, Plan):
        return made
    if not is_program(made):
        raise TypeError(f"the factory gives a {type(made).__name__} (return a Plan or a T program)")
    return lower(made, *arguments, machine=hda).plan


def points_of(choices: Mapping[str, Sequence[Any]] | Sequence[Choice]) -> list[dict[str, Any]]:
    """Return all combinations of the values, the last name changing fastest; or the configurations in a
    list."""
    if isinstance(choices, Mapping):
        for name, values in choices.items():
            if isinstance(values, str) or not isinstance(values, Iterable) or not list(values):
                raise TuneError(f"'{name}' has no values to choose from", advice=f"{{'{name}': [64, 128]}}")
        lists = {name: list(values) for name, values in choices.items()}
        if prod(map(len, lists.values())) > MAX_POINTS:
            raise TuneError(f"more than {MAX_POINTS} combinations", advice="give fewer values")
        points = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    elif isinstance(choices, Iterable) and all(isinstance(point, Mapping) for point in choices):
        points = [dict(point) for point in choices]
    else:
        points = []
    if not points or not points[0]:
        raise TuneError("there is nothing to choose from", advice='give {"block_M": [64, 128]}')
    return points


def _first_line(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0]


def _name(function: Any) -> str:
    """Return what tells an objective from others in a store; its code too, where it has any."""
    code = getattr(function, "__code__", None)
    text = code.co_code.hex() + repr(code.co_consts) if code else ""
    return f"{getattr(function, '__qualname__', function)} {text}"
