"""Which unit goes next, and when puts arrive. All schedules are legal; a correct program cannot tell them
apart."""

from __future__ import annotations

import random
from collections import deque
from typing import Protocol

from megatile.core.errors import did_you_mean
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.units import Unit


class Schedule(Protocol):
    """Chooses among units that can proceed."""

    late_puts: bool
    """Whether puts arrive only when nothing else can happen (or at random), instead of at once."""

    def add(self, unit: Unit) -> None: ...
    def defer(self, unit: Unit) -> None: ...
    def take(self) -> Unit: ...
    def __len__(self) -> int: ...
    def deliver_now(self) -> bool: ...


class RoundRobin:
    """One statement each, in turn; puts arrive at once."""

    late_puts = False

    def __init__(self) -> None:
        self.units: deque[Unit] = deque()

    def add(self, unit: Unit) -> None:
        self.units.append(unit)

    defer = add

    def take(self) -> Unit:
        return self.units.popleft()

    def __len__(self) -> int:
        return len(self.units)

    def deliver_now(self) -> bool:
        return True


class Random:
    """Any unit next; puts arrive some time later."""

    late_puts = True

    def __init__(self, seed: int):
        self.units: list[Unit] = []
        self.random = random.Random(seed)

    def add(self, unit: Unit) -> None:
        self.units.append(unit)

    defer = add

    def take(self) -> Unit:
        at = self.random.randrange(len(self.units))
        self.units[at], self.units[-1] = self.units[-1], self.units[at]
        return self.units.pop()

    def __len__(self) -> int:
        return len(self.units)

    def deliver_now(self) -> bool:
        return self.random.random() < 0.2


class Adversarial:
    """The unit that ran last runs on; puts arrive only when nothing else can happen."""

    late_puts = True

    def __init__(self) -> None:
        self.units: list[Unit] = []

    def add(self, unit: Unit) -> None:
        self.units.append(unit)

    def defer(self, unit: Unit) -> None:
        self.units.insert(0, unit)

    def take(self) -> Unit:
        return self.units.pop()

    def __len__(self) -> int:
        return len(self.units)

    def deliver_now(self) -> bool:
        return False


def schedule_of(name: str, seed: int) -> Schedule:
    """``round-robin``, ``random`` or ``adversarial``."""
    if name == "round-robin":
        return RoundRobin()
    if name == "random":
        return Random(seed)
    if name == "adversarial":
        return Adversarial()
    known = ("round-robin", "random", "adversarial")
    raise RunError(f"there is no schedule '{name}'", advice=did_you_mean(name, known, what="schedules"))
