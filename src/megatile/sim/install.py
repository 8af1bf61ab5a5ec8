"""Which queues are at which units of the hardware.

A queue is *installed* at a unit by one message of the host, once. A channel or flag that a plan marks as
``installed`` *lasts*: messages and counts go from one launch to the next. ``installed=True`` of `simulate`
and `Launch` says that the message of the host is not part of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MegatileError
from megatile.plan.cohort import of_units
from megatile.plan.model import Channel, Flag, Plan
from megatile.trace import Pointers

Place = tuple[str, int]
"""A scale and the number of one of its units."""


class InstallError(MegatileError, ValueError):
    """Queues that are installed a second time, or are not those that a plan needs."""


@dataclass(frozen=True)
class QueueFamily:
    """One channel family at one unit: its description, and where its messages come from (per member)."""

    channel: Channel
    sources: tuple[int, ...]

    def differs(self, other: QueueFamily) -> str | None:
        """Return why a plan that needs ``other`` cannot use this one; None if it can. Directions go by
        name."""
        mine, needed = self.channel, other.channel
        for what in ("slots", "memory", "offset"):
            a, b = getattr(mine, what), getattr(needed, what)
            if a != b:
                return f"has {what} {a!r}, the plan needs {b!r}"
        if needed.slot_bytes > mine.slot_bytes:
            return f"has slots of {mine.slot_bytes} bytes, the plan needs {needed.slot_bytes}"
        there = self.by_direction()
        for direction, source in other.by_direction().items():
            if direction not in there:
                return f"has no direction {direction}, only {', '.join(map(str, there))}"
            if there[direction] != source:
                return f"is fed by unit {there[direction]} in direction {direction}, the plan says {source}"
        return None

    def by_direction(self) -> dict[str | int, int]:
        names = self.channel.names or range(self.channel.members)
        return dict(zip(names, self.sources, strict=True))


InstalledFlags = dict[tuple[str, str], tuple[Flag, tuple[int, ...]]]
"""By scale and name: the flag, and the units that have it."""


class Queues:
    """The queues of a machine, by scale, unit of the hardware and name."""

    def __init__(self) -> None:
        self._at: dict[Place, dict[str, QueueFamily]] = {}
        self.flags: InstalledFlags = {}
        self._sent: Counter[tuple[Place, str, str | int]] = Counter()

    def checked_flags(self, plan: Plan) -> InstalledFlags:
        """Return the plan's installed flags; they are the same for all launches: as many members, at the same
        units in the same order."""
        installed = [flag for flag in plan.flags if flag.installed]
        places = place_numbers(plan) if installed else ()
        found = {(plan.scale, flag.name): (flag, places) for flag in installed}
        for key, wanted in found.items():
            known = self.flags.get(key, wanted)
            if known != wanted:
                raise InstallError(
                    f"flag '{key[1]}' of plan '{plan.name}' already exists with "
                    f"{known[0].members} members at {len(known[1])} units of {plan.scale}, or others",
                    advice="launches need the same members and units of an installed flag, in the same order",
                )
        return found

    def missing(self, plan: Plan) -> bool:
        """Return whether a unit of the plan has no queues yet; those that are there must be those it
        needs."""
        if not plan.channels:
            return False
        wanted = ends(plan)
        for place, families in wanted.items():
            if place in self._at:
                self._check(plan, place, families)
        return not wanted.keys() <= self._at.keys()

    def _check(self, plan: Plan, place: Place, families: dict[str, QueueFamily]) -> None:
        for name, needed in families.items():
            there = self._at[place].get(name)
            problem = "is not installed" if there is None else there.differs(needed)
            if problem is not None:
                raise InstallError(
                    f"queues of {plan.scale} {place[1]} are already installed: '{name}' {problem}",
                    advice="queues are installed once per unit: install those that serve every launch first, "
                    "or begin a new Session",
                )

    def install(self, plan: Plan, units: set[int]) -> None:
        """Queues for units of a plan; a unit of the hardware that has some already is an error."""
        places = {(plan.scale, int(p)) for p in places_of(plan)[sorted(units)]}
        wanted = {place: families for place, families in ends(plan).items() if place in places}
        twice = [place for place in wanted if place in self._at]
        if twice:
            raise InstallError(
                f"{plan.scale} {twice[0][1]} already has queues ({', '.join(self._at[twice[0]])}): "
                "they are installed once per unit",
                advice="launch without a second install, or begin a new Session",
            )
        self._at.update(wanted)

    def add(self, plan: Plan) -> None:
        """Queues for the units of a plan that have none yet."""
        self._at.update({p: families for p, families in ends(plan).items() if p not in self._at})

    def count(self, plan: Plan, messages: Mapping[str, Mapping[int, int]]) -> None:
        """Note how many messages a launch sent on each queue."""
        places = places_of(plan)
        for channel in (c for c in plan.channels if c.level is None):
            for queue, number in messages.get(channel.name, {}).items():
                unit, member = divmod(queue, channel.members)
                direction = channel.names[member] if channel.names else member
                self._sent[(plan.scale, int(places[unit])), channel.name, direction] += number

    def pointers(
        self, names: Callable[[Place], str], live: Callable[..., tuple[int, int, int] | None]
    ) -> Iterator[Pointers]:
        """Both ends of every installed queue that has a feeder. ``live`` gives how many messages were sent,
        have arrived and are freed where that goes on from launch to launch."""
        for place, families in self._at.items():
            for name, family in families.items():
                for member, (direction, source) in enumerate(family.by_direction().items()):
                    if source < 0:
                        continue
                    label, slots = family.channel.label(member), family.channel.slots
                    counts = live(place, name, direction) or (self._sent[place, name, direction],) * 3
                    yield from Pointers.of_queue(
                        label, names(place), names((place[0], source)), *counts, slots
                    )


@cached_in_owner
def places_of(plan: Plan) -> Any:
    """Return the unit of the hardware of every unit of a plan, as an array that nobody may change."""
    return of_units(plan.place, plan.units)


@cached_in_owner
def place_numbers(plan: Plan) -> tuple[int, ...]:
    """Return the unit of the hardware of every unit of a plan."""
    return tuple(places_of(plan).tolist())


def ends(plan: Plan) -> dict[Place, dict[str, QueueFamily]]:
    """For each unit of the hardware, the channel families that a plan wants there."""
    places = places_of(plan)
    if any(c.installed for c in plan.channels) and len(np.unique(places)) < len(places):
        raise InstallError(
            f"several units of plan '{plan.name}' share one {plan.scale}: installed queues need one each",
            advice="place every unit on a unit of its own",
        )
    found: dict[Place, dict[str, QueueFamily]] = {(plan.scale, int(place)): {} for place in places}
    for channel in plan.channels:
        columns = []
        for member in range(channel.members):
            source = of_units(channel.source, plan.units, member=member)
            there = (source >= 0) & (source < plan.units)
            columns.append(np.where(there, places[np.where(there, source, 0)], -1))
        for place, sources in zip(places.tolist(), np.stack(columns, axis=1).tolist(), strict=True):
            found[plan.scale, place][channel.name] = QueueFamily(channel, tuple(sources))
    return found
