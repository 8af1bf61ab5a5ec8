"""Races on storage that several units see: shared tiles and puts and gets, by happens-before clocks."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from megatile.core import clocks as hb
from megatile.core.errors import MegatileError
from megatile.plan.code import Instruction, RegionCode
from megatile.plan.cohort import Actors, Cohort, SlotHandle, TileHandle, Value, numbers, spread
from megatile.plan.model import Plan
from megatile.plan.statements import regions_of
from megatile.plan.storage import Access
from megatile.plan.text import statement_text

# Vector clocks need units x units numbers; beyond this the check would cost more than the execution.
MAX_UNITS = 4096


class RaceError(MegatileError, RuntimeError):
    """Two unordered accesses of different units to the same storage, at least one of them a write."""


class UncheckedWarning(UserWarning):
    """A plan that is too large to be checked for races."""


class RaceWatch:
    """Follows who knows what, and looks at every access to storage that several units see."""

    def __init__(self, plan: Plan, seen: frozenset[str]):
        self.plan, self.seen = plan, seen
        self.actors = Actors(plan)
        self.clocks = hb.Clocks(self.actors.count)
        self.log = hb.AccessLog()
        self.messages: dict[tuple[Any, ...], deque[Any]] = {}
        self.signals: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
        self.fetched: dict[Any, Any] = {}

    @staticmethod
    def for_plan(plan: Plan) -> RaceWatch | None:
        """Return a watch if the plan has anything to watch, else None: private storage cannot race."""
        seen = {tile.name for tile in plan.tiles if tile.shared}
        level_of = {tile.name: tile.level for tile in plan.tiles}
        for stream, body in zip(plan.streams, plan.bodies, strict=True):
            for region in (region for statement in body for region in regions_of(statement)):
                if region.at is not None or level_of.get(region.tile, stream.level) != stream.level:
                    seen.add(region.tile)
        units = Actors(plan).count
        if seen and units > MAX_UNITS:
            warnings.warn(
                UncheckedWarning(
                    f"races of plan '{plan.name}' are not looked for: it has {units} units, "
                    f"the check can follow {MAX_UNITS} (try: execute the same plan with fewer units)"
                ),
                stacklevel=2,
            )
            return None
        return RaceWatch(plan, frozenset(seen)) if seen else None

    def access(
        self, cohort: Cohort, instruction: Instruction, code: RegionCode, found: Access, write: bool
    ) -> None:
        handle = cohort.handles[code.tile]
        if not isinstance(handle, TileHandle) or handle.tile not in self.seen:
            return
        if 0 in found.shape:
            return  # a region without elements conflicts with nothing
        starts = found.start or (0,) * len(found.shape)
        fetches = bool(getattr(instruction.statement, "combine", ""))
        atomic = fetches or (
            code.tile == getattr(instruction.write, "tile", None) and "combine" in instruction.attributes
        )
        for actor, owner, buffer, *first in self.each(cohort, *found.lead, *starts):
            box = tuple((low, low + n) for low, n in zip(first, found.shape, strict=True))
            storage = (handle.tile, owner, buffer)
            access = hb.Access(actor, write, box, instruction.statement, atomic)
            if fetches:
                self.fetch((*storage, box), actor)
            other = self.log.record(self.clocks, storage, access)
            if other is not None:
                raise self.race(access, other, storage)

    def each(self, cohort: Cohort, *values: Value) -> Iterator[tuple[int, ...]]:
        """Return the number of every unit among the actors, with its values."""
        numbers = cohort.units + self.actors.number(cohort.level, 0)
        return zip(*(spread(v, len(cohort)).tolist() for v in (numbers, *values)), strict=True)

    def fetch(self, element: Any, unit: int) -> None:
        """A unit that fetches an element knows what those before it did, and those after what it did."""
        past = self.fetched.get(element)
        if past is not None:
            self.clocks.acquire(unit, past)
        now = self.clocks.release(unit)
        self.fetched[element] = now if past is None else np.maximum(past, now)

    def race(self, access: hb.Access, other: hb.Access, storage: tuple[str, int, int]) -> RaceError:
        first, second = (self.described(a) for a in (other, access))
        return RaceError(
            f"race on tile '{storage[0]}' of owner {storage[1]}: {first} and {second} are not ordered",
            place=access.label.source,
            advice="put a barrier, a signal and wait, or a message between them",
        )

    def send(self, cohort: Cohort, channel: str, to: Value, member: Value) -> None:
        for actor, *queue in self.each(cohort, to, member):
            self.messages.setdefault((channel, *queue), deque()).append(self.clocks.release(actor))

    def from_outside(self, channel: str, to: int, member: int, known: Any = None) -> None:
        """Record a message that may come from another launch."""
        known = np.zeros(len(self.clocks), dtype=np.int64) if known is None else known
        self.messages.setdefault((channel, to, member), deque()).append(known)

    def receive(self, cohort: Cohort, handle: SlotHandle) -> None:
        mine = numbers(self.plan, cohort, self.plan.channel(handle.channel).level)
        for actor, unit, member in self.each(cohort, mine, handle.member):
            self.clocks.acquire(actor, self.messages[handle.channel, unit, member].popleft())

    def signal(self, cohort: Cohort, flag: str, to: Value, member: Value, amount: Value) -> None:
        for actor, added, *counter in self.each(cohort, amount, to, member):
            self.signals.setdefault((flag, *counter), []).append((added, self.clocks.release(actor)))

    def wait(self, cohort: Cohort, flag: str, mine: Any, member: Value, value: Value) -> None:
        """A wait knows the signals that were needed to reach its value, in the order they came."""
        for actor, needed, *counter in self.each(cohort, value, mine, member):
            reached = 0
            for amount, snapshot in self.signals.get((flag, *counter), []):
                if reached >= needed:
                    break
                reached += amount
                self.clocks.acquire(actor, snapshot)

    def rendezvous(self, keys: Any, units: Any, level: str | None) -> None:
        for key in np.unique(keys[units]):
            self.clocks.rendezvous(self.actors.number(level, int(u)) for u in units if keys[u] == key)

    def described(self, access: hb.Access) -> str:
        word = "writes" if access.write else "reads"
        where = f" at {access.label.source}" if access.label.source else ""
        return f"{self.actors.label(access.unit)} {word} in '{statement_text(access.label)}'{where}"
