"""``check``, ``execute``, ``simulate`` and ``price`` of a tile program with arrays or shapes, or of a Plan.

mt.execute(prog, a, b, c, machine="dgx-h100")["C"]
mt.simulate(prog, (M, K), (K, N), (M, N), machine="dgx-h100").time_ns
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megatile.cost.price import Price, price as price_plan
from megatile.hda import HDA
from megatile.ir.program import Program
from megatile.language.tile.program import ProgramFunction
from megatile.language.tile.tiles import InputArray
from megatile.lower.lowered import ArgumentsError, Lowered, lower
from megatile.plan.check import Checked, check as check_plan
from megatile.plan.execute import Results, execute as execute_plan
from megatile.plan.model import Plan
from megatile.sim import Result, simulate as simulate_plan


def is_program(value: Any) -> bool:
    return isinstance(value, (ProgramFunction, Program, Lowered))


def _lowered(prog: Any, given: Sequence[Any], machine: str | HDA | None) -> Lowered:
    return prog if isinstance(prog, Lowered) else lower(prog, *given, machine=machine)


def _arrays(given: Sequence[Any]) -> list[Any]:
    return [a.array if isinstance(a, InputArray) else a for a in given]


def _are_arrays(given: Sequence[Any]) -> bool:
    return bool(given) and all(hasattr(a, "shape") for a in given)


def check(plan: Any, *given: Any, machine: str | HDA | None = None, **options: Any) -> Checked:
    """Check a Plan (also against a machine), or the Plan of a program with arrays or shapes."""
    if not is_program(plan):
        return check_plan(plan, *(given or (machine,)), **options)
    low = _lowered(plan, _arrays(given), machine)
    return check_plan(low.plan, low.machine, **options)


def execute(plan: Any, *given: Any, machine: str | HDA | None = None, **options: Any) -> Results:
    """Run a Plan on its inputs, or a program on arrays, command by command; the arrays stay as they are.

    Of a program the results are the tensors that it writes, by name.
    """
    if not is_program(plan):
        return execute_plan(plan, *given, **options)
    arrays = _arrays(given)
    if not _are_arrays(arrays):
        raise ArgumentsError(
            "mt.execute runs a program on arrays", advice="shapes are enough for mt.simulate"
        )
    low = _lowered(plan, arrays, machine)
    found = execute_plan(low.plan, low.scatter(arrays), **options)
    return Results(low.gather(found, arrays), found.choices, found.order_dependent)


def simulate(plan: Any, *given: Any, machine: str | HDA | None = None, **options: Any) -> Result:
    """How long a Plan takes on a machine, or a program with arrays or shapes; with arrays also its results
    (``r.outputs``, the tensors written by name)."""
    if not is_program(plan):
        return simulate_plan(plan, *given, machine=machine, **options)  # type: ignore[arg-type]
    arrays = _arrays(given)
    low = _lowered(plan, arrays, machine)
    data = options.pop("data", None)
    inputs = low.scatter(arrays) if _are_arrays(arrays) and data is not False else None
    result = simulate_plan(low.plan, inputs, machine=low.machine, **options)
    if inputs is not None and result.outputs is not None:
        result.outputs = low.gather(result.outputs, [np.asarray(a) for a in arrays])
    return result


def price(plan: Any, *given: Any, machine: str | HDA | None = None, **options: Any) -> Price:
    """Bounds of the time of a Plan, or of a program with arrays or shapes, on a machine."""
    if not is_program(plan):
        return price_plan(plan, *(given or (machine,)), **options)
    low = _lowered(plan, _arrays(given), machine)
    return price_plan(low.plan, low.machine, **options)


__all__ = ["Plan", "check", "execute", "price", "simulate"]
