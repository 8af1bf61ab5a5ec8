"""Happens-before clocks: which of two units' accesses to shared storage are ordered, and which are a race.

Each unit has a vector clock. Synchronisation moves clocks (``release`` at the one end, ``acquire`` at the
other, ``rendezvous`` for a barrier). ``AccessLog.record`` notes an access, and returns an earlier one that
conflicts with it and is not ordered before it.

>>> clocks, log = Clocks(2), AccessLog()
>>> log.record(clocks, "x", Access(0, True, ((0, 4),), "write by 0"))
>>> log.record(clocks, "x", Access(1, False, ((2, 3),), "read by 1")).label
'write by 0'

With a message from unit 0 to unit 1 in between the two are ordered:

>>> clocks, log = Clocks(2), AccessLog()
>>> log.record(clocks, "x", Access(0, True, ((0, 4),), "write by 0"))
>>> clocks.acquire(1, clocks.release(0))
>>> log.record(clocks, "x", Access(1, False, ((2, 3),), "read by 1")) is None
True
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

Clock = Any  # np.ndarray of int64, one entry per unit
Box = tuple[tuple[int, int], ...]  # half-open interval per dimension; () overlaps everything


class Clocks:
    """Vector clocks of ``units`` units. Entry (u, v) is how much of v's past unit u knows."""

    def __init__(self, units: int):
        self._now = np.zeros((units, units), dtype=np.int64)
        np.fill_diagonal(self._now, 1)

    def __len__(self) -> int:
        return len(self._now)

    def epoch(self, unit: int) -> int:
        """Return the unit's own time: it grows with every release."""
        return int(self._now[unit, unit])

    def release(self, unit: int) -> Clock:
        """Return what others will know once they acquire the result: everything the unit did so far."""
        snapshot = self._now[unit].copy()
        self._now[unit, unit] += 1
        return snapshot

    def acquire(self, unit: int, snapshot: Clock) -> None:
        """Let a unit know what was released."""
        np.maximum(self._now[unit], snapshot, out=self._now[unit])

    def rendezvous(self, units: Iterable[int]) -> None:
        """Let units meet at a barrier: each knows afterwards what any of them did before it."""
        members = list(units)
        known = self._now[members].max(axis=0)
        self._now[members] = known
        self._now[members, members] += 1

    def knows(self, unit: int, other: int, epoch: int) -> bool:
        """Return whether everything ``other`` did in ``epoch`` happens before what ``unit`` does now."""
        return unit == other or bool(self._now[unit, other] >= epoch)


@dataclass(frozen=True)
class Access:
    """One access by a unit to a box of some storage; ``label`` is whatever names it in a report."""

    unit: int
    write: bool
    box: Box
    label: Any = None
    atomic: bool = False
    """Whether it may run at the same time as others that are."""


def overlap(a: Box, b: Box) -> bool:
    return all(low < high_b and low_b < high for (low, high), (low_b, high_b) in zip(a, b, strict=False))


def covers(outer: Box, inner: Box) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=False))


Entry = tuple[Access, int]
"""An access, and the epoch of its unit."""


class AccessLog:
    """The accesses to each storage that may still conflict with a later one."""

    def __init__(self) -> None:
        self._past: dict[Hashable, _Past] = {}

    def record(self, clocks: Clocks, storage: Hashable, access: Access) -> Access | None:
        """Note the access; return an earlier one that is unordered, overlaps, and one of the two writes."""
        past = self._past.setdefault(storage, _Past())
        race = past.conflict(clocks, access)
        past.add(clocks, access)
        return race


class _Past:
    """The accesses to one storage: writes, and reads by unit. A read is compared with writes only."""

    def __init__(self) -> None:
        self.writes: list[Entry] = []
        self.reads: dict[int, list[Entry]] = {}

    def __len__(self) -> int:
        return len(self.writes) + sum(map(len, self.reads.values()))

    def conflict(self, clocks: Clocks, access: Access) -> Access | None:
        """Return an earlier access that races with this one: a write, or else a read."""
        reads = self.reads.values() if access.write else ()
        for earlier, epoch in chain(self.writes, *reads):
            unordered = not (access.atomic and earlier.atomic) and overlap(access.box, earlier.box)
            if unordered and not clocks.knows(access.unit, earlier.unit, epoch):
                return earlier
        return None

    def add(self, clocks: Clocks, access: Access) -> None:
        """Keep the access in place of those that are found through it: ordered before it, and covered."""

        def rest(entries: list[Entry]) -> list[Entry]:
            return [
                (earlier, epoch)
                for earlier, epoch in entries
                if not (covers(access.box, earlier.box) and clocks.knows(access.unit, earlier.unit, epoch))
            ]

        entry = access, clocks.epoch(access.unit)
        if not access.write:
            mine = self.reads.setdefault(access.unit, [])
            mine[:] = [*rest(mine), entry]
            return
        self.reads = {unit: kept for unit, every in self.reads.items() if (kept := rest(every))}
        self.writes = [*(self.writes if access.atomic else rest(self.writes)), entry]
