"""Data beside time: integers that a plan reads at run time, and outputs in the order of the timed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.commands import chooser
from megatile.plan.execute import Executor, Results, execute
from megatile.timing.view import TimingError

Scalars = Callable[[pm.ReadScalar, Any, Any], Any]


@pm.once
def reads_scalars(plan: pm.Plan) -> bool:
    """Whether the course of a plan depends on its data."""
    return any(isinstance(s, pm.ReadScalar) for stream in plan.streams for s in pm.statements(stream.body))


def assumed(assume: Mapping[str, Any] | None) -> Scalars:
    """Values for `ReadScalar` as the user assumes them: an int, or one per unit."""

    def value(statement: pm.ReadScalar, unit: Any, count: Any) -> Any:
        if assume is None or statement.name not in assume:
            raise TimingError(
                f"the time depends on the value of '{statement.name}', which only the data knows",
                place=statement.source,
                advice=f"simulate with data, or with assume={{'{statement.name}': {statement.bound}}}",
            )
        given = np.asarray(assume[statement.name])
        if given.dtype.kind not in "iu" or given.ndim > 1 or not given.size:
            raise TimingError(
                f"assume={{'{statement.name}': …}} takes a number, or one per unit, "
                f"not {assume[statement.name]!r}"
            )
        if given.min() < 0 or given.max() > statement.bound:
            wrong = int(given.min() if given.min() < 0 else given.max())
            raise TimingError(
                f"'{statement.name}' is assumed to be {wrong}, outside 0..{statement.bound}",
                place=statement.source,
            )
        if not given.ndim:
            return int(given)
        unit = unit[1] if isinstance(unit, tuple) else unit
        if np.max(unit) >= len(given):
            raise TimingError(
                f"assume={{'{statement.name}': …}} has {len(given)} numbers, none for unit "
                f"{int(np.max(unit))}"
            )
        return given[unit] if isinstance(unit, np.ndarray) else int(given[unit])

    return value


class Recorder(Executor):
    """An execution that remembers what every unit read."""

    def __init__(self, plan: pm.Plan, inputs: Mapping[str, Any], order: Any) -> None:
        super().__init__(plan, inputs, order=order, races=False)
        self.seen: dict[tuple[str, Any], list[int]] = {}

    def on_read_scalar(self, cohort: Any, instruction: Any) -> Any:
        values = super().on_read_scalar(cohort, instruction)
        name = instruction.statement.name
        each = np.broadcast_to(values, np.shape(cohort.units))
        for unit, value in zip(np.asarray(cohort.units).tolist(), each.tolist(), strict=True):
            self.seen.setdefault((name, chooser(cohort, unit)), []).append(int(value))
        return values


def observed(plan: pm.Plan, inputs: Mapping[str, Any], order: Any) -> tuple[Scalars, dict[Any, list[int]]]:
    """Values for `ReadScalar` as an execution on the data reads them."""
    run = Recorder(plan, inputs, order)
    run.run()
    seen = run.seen

    def one(name: str, unit: Any, count: int) -> int:
        values = seen.get((name, unit), [])
        return values[count] if count < len(values) else 0

    def value(statement: pm.ReadScalar, unit: Any, count: Any) -> Any:
        if not isinstance(unit, np.ndarray):
            return one(statement.name, unit, count)
        counts = np.broadcast_to(count, unit.shape).tolist()
        found = [one(statement.name, u, c) for u, c in zip(unit.tolist(), counts, strict=True)]
        return np.array(found, dtype=np.int64)

    return value, seen


def outputs(plan: pm.Plan, inputs: Mapping[str, Any], order: Any) -> Results:
    """The plan's outputs, with every receive-from-any as the timed run decided it."""
    return execute(plan, inputs, order=order)
