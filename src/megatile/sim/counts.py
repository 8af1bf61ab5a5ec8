"""How many messages went through queues, for one unit or for many at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.sim.rows import Mask, Number


class QueueCounts:
    """How many messages each queue of a channel has seen; one int while all units go in step."""

    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._common: tuple[Any, int] | None = None
        self._each: np.ndarray | dict[int, int] | None = None

    def next(self, queue: Number, mask: Mask) -> Number:
        """The number of the next message of ``queue`` (an int, or one queue per unit), counted up."""
        array = isinstance(queue, np.ndarray)
        if not array and mask is None and self._common is None and not isinstance(self._each, np.ndarray):
            if self._each is None:
                self._each = {}
            number = self._each.get(queue, 0)
            self._each[queue] = number + 1
            return number
        in_step = array and mask is None and self._each is None
        if in_step and (self._common is None or self._common[0] is queue):
            number = self._common[1] if self._common else 0
            self._common = (queue, number + 1)
            return number
        each = self._spread()
        if mask is not None:
            queue = np.where(mask, queue, 0)  # who takes no part may name a queue that does not exist
        numbers = each[queue]
        if mask is None:
            each[queue] = numbers + 1
        else:
            active = queue[mask]
            each[active] = numbers[mask] + 1
        return numbers

    def peek(self, queue: int) -> int:
        """The number that `next` would give (for one unit)."""
        return self._each.get(queue, 0) if isinstance(self._each, dict) else 0

    def add_to(self, totals: dict[int, int]) -> None:
        """Add the counts of all queues that saw something."""
        if self._each is None and self._common is not None:
            found = [(queue, self._common[1]) for queue in self._common[0].tolist()]
        elif isinstance(self._each, np.ndarray):
            seen = np.flatnonzero(self._each)
            found = list(zip(seen.tolist(), self._each[seen].tolist(), strict=True))
        else:
            found = list((self._each or {}).items())
        for queue, number in found:
            totals[queue] = totals.get(queue, 0) + number

    def _spread(self) -> np.ndarray:
        if not isinstance(self._each, np.ndarray):
            each = np.zeros(self._queues, dtype=np.int64)
            for queue, number in (self._each or {}).items():
                each[queue] = number
            if self._common is not None:
                each[self._common[0]] = self._common[1]
            self._each = each
        return self._each
