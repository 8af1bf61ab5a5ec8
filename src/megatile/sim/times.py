"""What an evaluator hands back: when every operation of every unit started and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.trace import WaitGraph


@dataclass
class Times:
    """Times of one run. The lists per unit go with the unit's operations, in issue order.

    ``start`` and ``end`` are empty unless the run was recorded. ``arrival`` gives the
    picoseconds of every message of a queue; ``choices`` are the members that each unit's
    receive-from-any took, in issue order.
    """

    end_ps: int = 0
    operations: list[list[tuple[Any, ...]]] = field(default_factory=list)
    start: list[list[int]] = field(default_factory=list)
    end: list[list[int]] = field(default_factory=list)
    arrival: dict[int, list[int]] = field(default_factory=dict)
    choices: dict[int, list[int]] = field(default_factory=dict)
    messages: dict[str, dict[int, int]] = field(default_factory=dict)
    """Per channel, how many messages went through each queue (receiver * members + member)."""
    loads: Any = None
    """The `Loads` of a run that was asked to count them."""
    stuck: WaitGraph | None = None
    complete: bool = True

    def record(self, units: Sequence[int], active: Sequence[int], start: Any, end: Any) -> None:
        """One operation of several units at once; times are numbers, or arrays over ``units``."""
        starts, ends = (np.broadcast_to(times, len(units)) for times in (start, end))
        for i in active:
            self.start[units[i]].append(int(starts[i]))
            self.end[units[i]].append(int(ends[i]))
