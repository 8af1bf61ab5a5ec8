"""Compare the executed Plan of a lowered program with the interpreter, on random data."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.dtypes import is_float, numpy_dtype
from megatile.core.errors import MegatileError
from megatile.core.limits import enough_memory
from megatile.lowering.calls import execute
from megatile.lowering.lowered import Lowered
from megatile.targets.interpret.run import run

TOLERANCE = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
"""How far another order of sums may move results that are of the order of one."""


class PlanMismatch(MegatileError):
    """A Plan that gives other results than the interpreter: a mistake of the lowering, not of the program."""


def random_arrays(lowered: Lowered, seed: int = 0) -> list[Any]:
    """Arguments for a program: normal numbers; whole numbers are zero, for they may be indices."""
    rng = np.random.default_rng(seed)
    arrays = []
    for param in lowered.program.params:
        shape, element = tuple(int(e) for e in param.shape), numpy_dtype(param.dtype)
        with enough_memory(f"data for '{param.name}'", "use smaller extents, or run without data"):
            data = rng.standard_normal(shape, np.float32) if is_float(param.dtype) else np.zeros(shape)
            arrays.append(data.astype(element))
    return arrays


def verify(lowered: Lowered, *arrays: Any, seed: int = 0) -> str:
    """Run both on the same data; how close they are, or an error that says where they differ."""
    given = list(arrays) or random_arrays(lowered, seed)
    wanted = [np.array(a) for a in given]
    run(lowered.source, *wanted, machine=lowered.machine, output=lambda text: None)
    got = execute(lowered, *given)
    worst = 0.0
    for param, before, after in zip(lowered.program.params, given, wanted, strict=True):
        mine = got.get(param.name, before)
        if mine.tobytes() == after.tobytes():
            continue
        wide, other = mine.astype(np.float64), after.astype(np.float64)
        scale = max(1.0, float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other))))
        bound = TOLERANCE.get(param.dtype, 0.25 if is_float(param.dtype) else 0.0)
        close = np.isclose(wide, other, rtol=bound, atol=bound * scale, equal_nan=True)
        if not close.all():
            where = tuple(int(i) for i in np.argwhere(~close)[0])
            raise PlanMismatch(
                f"'{param.name}'{list(where)} is {mine[where]} in the Plan and {after[where]} interpreted",
                advice="report it, with the program: the two must agree",
            )
        gap = np.abs(wide - other)[np.isfinite(wide) & np.isfinite(other)]
        worst = max(worst, float(gap.max(initial=0.0)) / scale)
    return "bit for bit" if not worst else f"to {worst:.1e} of the largest value"
