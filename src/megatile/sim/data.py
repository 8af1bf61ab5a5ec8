"""Integers that a plan reads at run time: assumed, or as an execution has read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.timing.machine_timing import TimingError

Scalars = Callable[[pm.ReadScalar, Any, Any], Any]


class Assumed:
    """Values for `ReadScalar` as the user assumes them: an int, or one per unit."""

    def __init__(self, assume: Mapping[str, Any] | None) -> None:
        self.assume = assume

    def has(self, name: str, units: int) -> bool:
        """Return whether there is a value for each of so many units."""
        given = np.shape((self.assume or {}).get(name, ()))
        return self.assume is not None and name in self.assume and (not given or given[0] >= units)

    def __call__(self, statement: pm.ReadScalar, unit: Any, count: Any) -> Any:
        if self.assume is None or statement.name not in self.assume:
            raise TimingError(
                f"the time depends on the value of '{statement.name}', which depends on data",
                place=statement.source,
                advice=f"simulate with data, or with assume={{'{statement.name}': {statement.bound}}}",
            )
        given = self._values(statement)
        if not given.ndim:
            return int(given)
        unit = unit[1] if isinstance(unit, tuple) else unit
        if np.max(unit) >= len(given):
            raise TimingError(
                f"assume={{'{statement.name}': …}} has {len(given)} numbers, none for unit "
                f"{int(np.max(unit))}"
            )
        return given[unit] if isinstance(unit, np.ndarray) else int(given[unit])

    def range(self, statement: pm.ReadScalar) -> tuple[int, int]:
        """Return the least and the greatest of the values assumed."""
        given = self._values(statement)
        return int(given.min()), int(given.max())

    def _values(self, statement: pm.ReadScalar) -> Any:
        assert self.assume is not None
        given = np.asarray(self.assume[statement.name])
        if given.dtype.kind not in "iu" or given.ndim > 1 or not given.size:
            raise TimingError(
                f"assume={{'{statement.name}': …}} takes a number, or one per unit, "
                f"not {self.assume[statement.name]!r}"
            )
        if given.min() < 0 or given.max() > statement.bound:
            wrong = int(given.min() if given.min() < 0 else given.max())
            raise TimingError(
                f"'{statement.name}' is assumed to be {wrong}, outside 0..{statement.bound}",
                place=statement.source,
            )
        return given


def seen_values(seen: Mapping[tuple[str, Any], list[int]]) -> Scalars:
    """Values for `ReadScalar` as an execution on the data has read them."""

    def value(statement: pm.ReadScalar, unit: Any, count: int) -> int:
        values = seen.get((statement.name, unit), [])
        return values[count] if count < len(values) else 0

    return value
