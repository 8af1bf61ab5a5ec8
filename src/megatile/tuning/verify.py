"""Verify the data of a tuned plan: a program against the interpreter, a plan against another."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from megatile.core.dtypes import dtype as dtype_name, is_float, itemsize, numpy_dtype
from megatile.core.quantities import format_bytes
from megatile.lowering.lowered import lower
from megatile.plan.execute import execute
from megatile.plan.model import Plan
from megatile.targets.interpret.verify import TOLERANCE, verify as verify_program
from megatile.tuning.work import Task, TuneError

MAX_BYTES = 1 << 24
"""Of inputs that are made up: beyond, running the plan in NumPy would take longer than the search."""
TOO_LARGE = (
    f"data not verified: arguments of more than {format_bytes(MAX_BYTES)} "
    "(tune a smaller shape to verify them, or give inputs= in Python)"
)


def verify_outputs(task: Task, winner: int, reference: int, inputs: Any = None) -> str:
    """Return how the winner's data were verified; data that differ are an error."""
    made, hda = task.make(task.points[winner])
    if not isinstance(made, Plan):
        return _program(made, hda, task.arguments, inputs)
    plan, _ = task.plan(winner)
    given = inputs if inputs is not None else _random(plan)
    if given is None:
        return TOO_LARGE
    other, _ = task.plan(reference)
    try:
        expected = execute(other, given)
    except ValueError as problem:
        return f"data not verified: the first choice does not take the same inputs ({problem})"
    _compare(execute(plan, given), expected)
    return "results match the first choice"


def _program(made: Any, hda: Any, arguments: tuple[Any, ...], inputs: Any) -> str:
    low = lower(made, *arguments, machine=hda)
    arrays = inputs if inputs is not None else arguments
    if not (arrays and all(hasattr(a, "dtype") for a in arrays)):
        arrays = ()
        if sum(prod(map(int, p.shape)) * itemsize(p.dtype) for p in low.program.params) > MAX_BYTES:
            return TOO_LARGE
    return f"results match the interpreter ({verify_program(low, *arrays)})"


def _random(plan: Plan) -> dict[str, Any] | None:
    """Random arrays, the same every time; None where they would be too large."""
    tiles = [t for t in plan.tiles if t.role in ("input", "inout")]
    wanted = [(t.name, (plan.owners(t), *t.shape), t.dtype) for t in tiles]
    if sum(prod(shape) * itemsize(kind) for _, shape, kind in wanted) > MAX_BYTES:
        return None
    generator = np.random.default_rng(0)
    return {
        name: (
            generator.standard_normal(shape) if is_float(kind) else generator.integers(0, 8, shape)
        ).astype(numpy_dtype(kind))
        for name, shape, kind in wanted
    }


def _compare(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, array in expected.items():
        mine, theirs = np.asarray(found[name]), np.asarray(array)
        kind = dtype_name(theirs.dtype)
        allowed = TOLERANCE.get(kind, 0.5 if is_float(kind) else 0)
        a, b = (np.asarray(x, np.float64) for x in (mine, theirs))
        scale = max(1.0, float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)))
        if mine.shape != theirs.shape or not np.allclose(
            a, b, rtol=allowed, atol=allowed * scale, equal_nan=True
        ):
            raise TuneError(f"the fastest choice is wrong: '{name}' is not what the first choice gives")
