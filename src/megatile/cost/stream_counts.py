"""The commands of a stream for all its instances at once, rounds of loops included, without running it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from megatile.core.expr import Expr, symbols
from megatile.plan import model as pm

Values = Mapping[str, Any]


class Walk:
    """Goes through a stream; `command` takes each statement with what is known and how often each row of
    ``times`` does it. Rows are pairs of instance and round. What depends on data is left out."""

    MAX_ROWS = 1 << 20
    """Rows that are looked at together."""

    def __init__(self, stream: pm.Stream) -> None:
        self.seen = 0
        units = np.fromiter(stream.unit_numbers(), np.int64)
        self.block(stream.body, {"unit": units}, np.ones(len(units), np.int64))

    def command(self, s: Any, known: Values, times: Any) -> None:
        """Count one statement."""

    def max_rows(self, s: pm.Loop) -> int:
        """Return how many rows of a loop are looked at; of more the index is not known."""
        return self.MAX_ROWS

    def block(self, body: Iterable[Any], known: Values, times: Any) -> None:
        for s in body:
            if isinstance(s, pm.Loop):
                self.loop(s, known, times)
            elif isinstance(s, pm.If):
                taken = value_of(s.condition, known)
                if taken is not None:
                    self.block(s.body, known, np.where(taken != 0, times, 0))
                    self.block(s.orelse, known, np.where(taken != 0, 0, times))
            else:
                self.command(s, known, times)

    def loop(self, s: pm.Loop, known: Values, times: Any) -> None:
        bounds = [value_of(e, known) for e in (s.start, s.stop, s.step)]
        if any(b is None for b in bounds):
            return
        start, stop, step = (np.broadcast_to(b, times.shape) for b in bounds)
        trips = np.maximum(0, -(-(stop - start) // np.where(step == 0, 1, step)))
        most = int(trips.max(initial=0))
        rows = most * len(times)
        if s.carries or rows > self.max_rows(s):
            self.block(s.body, {n: v for n, v in known.items() if n != s.index}, times * trips)
            return
        self.seen += rows
        each = max(1, self.MAX_ROWS // max(1, len(times)))
        for first in range(0, most, each):
            here = min(each, most - first)
            turns = np.repeat(np.arange(first, first + here), len(times))
            wide = {name: np.tile(np.broadcast_to(v, times.shape), here) for name, v in known.items()}
            wide[s.index] = np.tile(start, here) + turns * np.tile(step, here)
            self.block(s.body, wide, np.where(turns < np.tile(trips, here), np.tile(times, here), 0))


def value_of(expression: Any, known: Values) -> Any:
    """Return the value for every row; None where it depends on something that is not known."""
    if not isinstance(expression, Expr):
        return expression
    return expression.evaluate(known) if symbols(expression) <= set(known) else None
