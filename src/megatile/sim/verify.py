"""What a timed run notices about queues in passing, and how it is told.

Following a plan costs too much to do it twice, so only cheap facts are looked at on the way: who sends where,
how large messages are, how many go in and come out. When something is odd, the plan is walked once more
as ``check`` does, and that says what is wrong, where, and what to try.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.plan.check import CountingWalk
from megatile.sim.cohort import Cohort
from megatile.sim.rows import Odd
from megatile.timing.view import TimingError


def messages_through(cohorts: Iterable[Cohort]) -> dict[str, dict[int, int]]:
    """How many messages went through every queue, by channel.

    Raises `Odd` if messages are left in a queue, or their sizes are not those that are received.
    """
    sent: dict[str, Any] = {}
    taken: dict[str, Any] = {}
    sizes: dict[str, tuple[set[int], set[int]]] = {}
    for cohort in cohorts:
        for totals, counts in ((sent, cohort.sent), (taken, cohort.taken)):
            for name, count in counts.items():
                count.add_to(totals.setdefault(name, {}))
        for name, (out, back) in cohort.sizes.items():
            known = sizes.setdefault(name, (set(), set()))
            known[0].update(out)
            known[1].update(back)
    for name, queues in sent.items():
        if queues != taken[name]:
            raise Odd(f"messages of channel '{name}' are left in their queues")
    for name, (out, back) in sizes.items():
        if out != back and -1 not in out | back:
            raise Odd(f"channel '{name}' has messages of other sizes than those that are received")
    return sent


class Explanation(CountingWalk):
    """The walk of `check` with the integers that the timed run reads."""

    def __init__(self, plan: pm.Plan, scalars: Any) -> None:
        super().__init__(plan, {})
        self.scalars = scalars
        self.reads: dict[tuple[str, int], int] = {}

    def on_read_scalar(self, cohort: Any, instruction: Any) -> Any:
        statement, values = instruction.statement, []
        for unit in cohort.units.tolist():
            count = self.reads.get((statement.name, unit), 0)
            self.reads[statement.name, unit] = count + 1
            values.append(int(self.scalars(statement, unit, count)))
        return np.array(values, dtype=np.int64)


def explain(plan: pm.Plan, scalars: Any, odd: Odd) -> None:
    """Raise the error that ``check`` gives for a plan in which something is odd."""
    walk = Explanation(plan, scalars)
    walk.run()
    walk.check_left_over()
    raise TimingError(f"plan '{plan.name}': {odd}", advice="look at what check(plan) says")
