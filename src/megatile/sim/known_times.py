"""Times of launches that had an idle machine for themselves: those like them need no engine.

A launch is like another if it is the same plan with the same machine, faults and timing (`Launch.alone_key`),
and caches hold the same before it, byte for byte. It then takes the same times, counted from its submission,
and leaves the same in caches. `MachineRun._begin` looks for one before it gives a launch to the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from megatile.plan.model import ReadScalar
from megatile.sim.launches import Launch
from megatile.sim.paths import CacheKey, Paths
from megatile.timing.resources import Resources

MAX_KNOWN = 128
"""Launches whose times are kept, with what caches held before and after: up to about 50 MB of each."""


def leaves_nothing(resources: Resources) -> bool:
    """Return whether a launch takes the same time whenever it has an idle machine for itself, with the same
    in its caches: no queue or flag lasts after it, no fault is random, no integer is read from data."""
    plan = resources.plan
    lasting = any(c.installed for c in plan.channels) or any(f.installed for f in plan.flags)
    return not (lasting or resources.faults or ReadScalar in plan.kinds)


class KnownTimes:
    """Launches that were timed alone: how they were submitted, and what caches held before."""

    def __init__(self) -> None:
        self.caches: dict[CacheKey, bytes] = {}
        """What caches hold since launches have ended that the engine did not have."""
        self._timed: deque[tuple[Any, Mapping[CacheKey, bytes], Launch]] = deque(maxlen=MAX_KNOWN)

    def find(self, launch: Launch, paths: Paths) -> Launch | None:
        """Return a launch like this that was timed with what caches hold now; None where there is none."""
        asked = launch.alone_key
        for key, before, known in self._timed:
            if key == asked and all(self._state(name, paths) == state for name, state in before.items()):
                return known
        return None

    def _state(self, name: CacheKey, paths: Paths) -> bytes:
        found = self.caches.get(name)
        return paths.cache_state(name) if found is None else found

    def keep(
        self, launch: Launch, known: Launch, before: Mapping[CacheKey, bytes], most_records: int
    ) -> None:
        """Keep the times of a launch for those like it, within as many records as there may be."""
        self._timed.append((launch.alone_key, before, known))
        while len(self._timed) > 1 and sum(k.recorded_commands for *_, k in self._timed) > most_records:
            self._timed.popleft()
