"""``check``, ``execute``, ``simulate`` and ``price`` of a tile program with arrays or shapes, or of a Plan.

mt.execute(prog, a, b, c, machine="dgx-h100")["C"]
mt.simulate(prog, (M, K), (K, N), (M, N), machine="dgx-h100").time_ns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from megatile.core.frames import without_frames
from megatile.core.progress import Listener
from megatile.cost.bounded import bounded
from megatile.cost.price import Price, price as price_plan
from megatile.hda import HDA, machine as find_machine
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.language.tile.tiles import InputArray
from megatile.lowering.lowered import ArgumentsError, Lowered, lower
from megatile.plan.check import Checked, check as check_plan
from megatile.plan.execute import Results, execute as execute_plan
from megatile.plan.model import Plan
from megatile.sim import Result, simulate as simulate_plan

PROGRAMS = (ProgramFunction, Program, Lowered)
Timeable: TypeAlias = Plan | ProgramFunction | Program | Lowered
"""What can be checked, executed, simulated and priced."""


def is_program(value: Any) -> bool:
    return isinstance(value, PROGRAMS)


def _lowered(prog: Any, given: Sequence[Any], machine: str | HDA | None) -> Lowered:
    return prog if isinstance(prog, Lowered) else lower(prog, *given, machine=machine)


def _arrays(given: Sequence[Any]) -> list[Any]:
    """Return the arguments without marks; a number is an array of one element."""
    plain = [a.array if isinstance(a, InputArray) else a for a in given]
    return [np.array([a]) if isinstance(a, (int, float, np.generic)) else a for a in plain]


def _are_arrays(given: Sequence[Any]) -> bool:
    return bool(given) and all(hasattr(a, "shape") for a in given)


def _with_inputs(given: tuple[Any, ...], inputs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the positional arguments; the inputs of a Plan may also be given by name."""
    if given and inputs is not None:
        raise ArgumentsError("inputs are given twice", advice="give them once: simulate(plan, inputs)")
    return given if inputs is None else (inputs,)


@without_frames
def check(
    plan: Timeable,
    *given: Any,
    machine: str | HDA | None = None,
    assume: Mapping[str, int] | None = None,
) -> Checked:
    """Check a Plan (also against a machine), or the Plan of a program with arrays or shapes.

    ``assume`` gives values for integers that a plan reads from its data.
    """
    if not isinstance(plan, PROGRAMS):
        return check_plan(plan, *(given or (machine,)), assume=assume)
    low = _lowered(plan, _arrays(given), machine)
    return check_plan(low.plan, low.machine, assume=assume)


@without_frames
def execute(
    plan: Timeable,
    *given: Any,
    machine: str | HDA | None = None,
    inputs: Mapping[str, Any] | None = None,
    order: Any = None,
    races: bool = True,
) -> Results:
    """Run a Plan on its inputs, or a program on arrays, command by command; the arrays stay as they are.

    Of a program the results are the tensors that it writes, by name. ``order`` and ``races`` are those of
    ``megatile.plan.execute``.
    """
    given = _with_inputs(given, inputs)
    if not isinstance(plan, PROGRAMS):
        return execute_plan(plan, *given, *(None, order)[len(given) :], races=races)
    arrays = _arrays(given)
    if not _are_arrays(arrays):
        raise ArgumentsError(
            "mt.execute runs a program on arrays", advice="shapes are enough for mt.simulate"
        )
    low = _lowered(plan, arrays, machine)
    found = execute_plan(low.plan, low.scatter(arrays), order, races=races)
    return Results(low.gather(found, arrays), found.choices, found.order_dependent)


@without_frames
def simulate(
    plan: Timeable,
    *given: Any,
    machine: str | HDA | None = None,
    inputs: Mapping[str, Any] | None = None,
    data: bool | Mapping[str, Any] | None = None,
    engine: str | None = None,
    assume: Mapping[str, Any] | None = None,
    installed: bool = False,
    launch: bool = True,
    record: bool = True,
    capacity: bool = True,
    max_seconds: float | None = None,
    progress: bool | Listener = False,
) -> Result:
    """Return time a Plan on a machine, or a program with arrays or shapes; with arrays compute its results
    too (``r.outputs``, the tensors written by name).

    ``data=False`` times a program without its arrays. A run that takes longer than ``max_seconds`` raises
    `TimeBudgetExceeded`; ``progress=True`` shows a bar with the time left. The other arguments are those of
    ``megatile.sim.simulate``, which times Plans.
    """
    given = _with_inputs(given, inputs)
    low, arrays = None, _arrays(given)
    if isinstance(plan, PROGRAMS):
        low = _lowered(plan, arrays, machine)
        plan, machine = low.plan, low.machine
        given = (low.scatter(arrays) if _are_arrays(arrays) and data is not False else None,)
        data = None
    machine = find_machine(machine) if isinstance(machine, str) else machine
    large = None
    if isinstance(plan, Plan) and isinstance(machine, HDA) and not data and not any(given):
        large = bounded(plan, machine, launch)
    result = large or simulate_plan(
        plan, *given, machine=machine, data=data,  # type: ignore[arg-type]
        engine=engine, assume=assume, installed=installed, launch=launch,
        record=record, capacity=capacity, max_seconds=max_seconds, progress=progress,
    )  # fmt: skip
    result.lowered = low
    if low is not None and given[0] is not None and result.outputs is not None:
        result.outputs = low.gather(result.outputs, [np.asarray(a) for a in arrays])
    return result


@without_frames
def price(
    plan: Timeable,
    *given: Any,
    machine: str | HDA | None = None,
    assume: Mapping[str, Any] | None = None,
    launch: bool = True,
) -> Price:
    """Return bounds of the time of a Plan, or of a program with arrays or shapes, on a machine.

    ``assume`` and ``launch`` are those of ``simulate``.
    """
    if not isinstance(plan, PROGRAMS):
        return price_plan(plan, *(given or (machine,)), assume=assume, launch=launch)
    low = _lowered(plan, _arrays(given), machine)
    return price_plan(low.plan, low.machine, assume=assume, launch=launch)


__all__ = ["Plan", "check", "execute", "price", "simulate"]
