"""Which unit goes next, and when puts arrive. All schedules are legal; a correct program cannot tell them
apart."""

from __future__ import annotations

import random
from collections import deque

from megatile.core.errors import did_you_mean
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.units import Unit


class Schedule:
    """Chooses among ``units`` that can proceed: one statement each, in turn; puts arrive at once."""

    late_puts = False
    """Whether puts arrive only when nothing else can happen (or at random), instead of at once."""

    def __init__(self, seed: int) -> None:
        self.units: deque[Unit] = deque()
        self.random = random.Random(seed)

    def add(self, unit: Unit) -> None:
        self.units.append(unit)

    def defer(self, unit: Unit) -> None:
        """Add a unit that others should go before."""
        self.add(unit)

    def take(self) -> Unit:
        return self.units.popleft()

    def deliver_now(self) -> bool:
        return False


class Random(Schedule):
    """Any unit next; puts arrive some time later."""

    late_puts = True

    def take(self) -> Unit:
        at = self.random.randrange(len(self.units))
        self.units[at], self.units[-1] = self.units[-1], self.units[at]
        return self.units.pop()

    def deliver_now(self) -> bool:
        return self.random.random() < 0.2


class Adversarial(Schedule):
    """The unit that ran last runs on; puts arrive only when nothing else can happen."""

    late_puts = True

    def defer(self, unit: Unit) -> None:
        self.units.appendleft(unit)

    def take(self) -> Unit:
        return self.units.pop()


SCHEDULES = {"round-robin": Schedule, "random": Random, "adversarial": Adversarial}


def schedule_of(name: str, seed: int) -> Schedule:
    if name not in SCHEDULES:
        advice = did_you_mean(name, tuple(SCHEDULES), what="schedules")
        raise RunError(f"there is no schedule '{name}'", advice=advice)
    return SCHEDULES[name](seed)
