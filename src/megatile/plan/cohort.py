"""Cohorts: units of one stream that stand at the same instruction and are followed together; the queues of
messages between units, and the routes of sends to them.

A value that is equal for all of them is kept as an int, otherwise as an array with one entry per unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from megatile.core.expr import Expr
from megatile.plan.model import Channel, Plan, PlanError

Value = Any  # an int, or an int64 array aligned with the cohort's units


@dataclass(frozen=True)
class TileHandle:
    """A version of a declared tile."""

    tile: str
    version: Value = 0

    def kind(self) -> Any:
        return self.tile


@dataclass(frozen=True)
class SlotHandle:
    """A message in its slot: message number ``sequence`` of my queue ``member``."""

    channel: str
    member: Value
    sequence: Value
    shape: tuple[Value, ...]
    dtype: str

    @property
    def ragged(self) -> bool:
        """Whether units disagree on the shape."""
        return any(isinstance(extent, np.ndarray) for extent in self.shape)

    def kind(self) -> Any:
        shape = tuple("?" if isinstance(extent, np.ndarray) else extent for extent in self.shape)
        return self.channel, shape, self.dtype


Handle = TileHandle | SlotHandle


def pick(value: Value, chosen: Any) -> Value:
    """Return the value for some of the units; arrays that became uniform turn into ints."""
    if not isinstance(value, np.ndarray):
        return value
    return uniform(value[chosen])


def uniform(value: Value) -> Value:
    """Return an int if all entries are equal."""
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return int(value[0])
    return value


def lowest(value: Value) -> int:
    """Return the least value of all units."""
    return int(value.min()) if isinstance(value, np.ndarray) else value


def highest(value: Value) -> int:
    """Return the greatest value of all units."""
    return int(value.max()) if isinstance(value, np.ndarray) else value


def spread(value: Value, count: int) -> Any:
    """As an array with one entry per unit."""
    return value if isinstance(value, np.ndarray) else np.full(count, value, dtype=np.int64)


def of_units(expression: Expr, units: int, **known: int) -> Any:
    """Return the values of an expression for so many units, as an array that is only read."""
    numbers = np.arange(units, dtype=np.int64)
    return np.broadcast_to(expression.evaluate({"unit": numbers, **known}), numbers.shape)


@dataclass(eq=False)
class Cohort:
    """Units at instruction ``pc`` of ``stream``, with their integers and tile names."""

    stream: int
    units: Any
    pc: int = 0
    ints: dict[str, Value] = field(default_factory=dict)
    handles: dict[str, Handle] = field(default_factory=dict)
    level: str | None = None

    def __post_init__(self) -> None:
        self.ints.setdefault("unit", uniform(self.units))

    def __len__(self) -> int:
        return len(self.units)

    @cached_property
    def run(self) -> slice | None:
        """The units as a slice, if they are evenly spaced."""
        units = self.units
        first, last = int(units[0]), int(units[-1])
        if len(units) == 1:
            return slice(first, first + 1)
        step = int(units[1]) - first
        if last - first != step * (len(units) - 1) or (np.diff(units) != step).any():
            return None
        return slice(first, last + 1, step)

    def part(self, chosen: Any) -> Cohort:
        """Return the cohort of the chosen units (a mask or indices)."""
        ints = {name: pick(value, chosen) for name, value in self.ints.items()}
        handles = {name: _part(handle, chosen) for name, handle in self.handles.items()}
        return Cohort(self.stream, self.units[chosen], self.pc, ints, handles, self.level)

    def split(self, mask: Any) -> tuple[Cohort, Cohort]:
        return self.part(mask), self.part(~mask)

    def signature(self) -> Any:
        """Cohorts with equal signatures can be followed together."""
        kinds = tuple(sorted((name, repr(handle.kind())) for name, handle in self.handles.items()))
        return self.stream, self.pc, tuple(sorted(self.ints)), kinds


class Actors:
    """The instances of all levels of a plan, numbered one after another."""

    def __init__(self, plan: Plan):
        self.first: dict[str, int] = {}
        self.plan, self.count = plan, 0
        for level in plan.all_levels:
            self.first[level.name] = self.count
            self.count += plan.instances(level.name)

    def number(self, level: str | None, unit: int) -> int:
        return self.first[self.plan.level(level).name] + unit

    def name(self, level: str | None, unit: int) -> str:
        return self.label(self.number(level, unit))

    def label(self, number: int) -> str:
        """Return ``unit 3`` of the first level, ``block 3`` of another."""
        name, first = next((n, f) for n, f in reversed(self.first.items()) if f <= number)
        return f"{'unit' if name == self.plan.scale else name} {number - first}"


def numbers(plan: Plan, cohort: Cohort, level: str | None) -> Any:
    """Return the cohort's units as instances of a level: their own, or the ones above them that they belong
    to."""
    if level == cohort.level:
        return cohort.units
    per = plan.per(cohort.level, level)
    if per is None:
        raise PlanError(
            f"a stream of level '{plan.level(cohort.level).name}' is in no instance of level "
            f"'{plan.level(level).name}'",
            advice="name what belongs to its own level or to one above, or say whose it is (at=, to=)",
        )
    return cohort.units if per == 1 else cohort.units // per


def _part(handle: Handle, chosen: Any) -> Handle:
    if isinstance(handle, TileHandle):
        if not isinstance(handle.version, np.ndarray):
            return handle
        return TileHandle(handle.tile, pick(handle.version, chosen))
    member, sequence = pick(handle.member, chosen), pick(handle.sequence, chosen)
    shape = tuple(pick(extent, chosen) for extent in handle.shape)
    return SlotHandle(handle.channel, member, sequence, shape, handle.dtype)


def merge(cohorts: list[Cohort]) -> Cohort:
    """Return one cohort of several with equal signatures, its units in order."""
    first = cohorts[0]
    if len(cohorts) == 1:
        return first
    units = np.concatenate([c.units for c in cohorts])
    order = np.argsort(units, kind="stable")

    def join(values: list[Value]) -> Value:
        if not any(isinstance(v, np.ndarray) for v in values) and len(set(values)) == 1:
            return values[0]
        parts = [spread(v, len(c)) for v, c in zip(values, cohorts, strict=True)]
        return uniform(np.concatenate(parts)[order])

    ints = {name: join([c.ints[name] for c in cohorts]) for name in first.ints}
    handles: dict[str, Handle] = {}
    for name, handle in first.handles.items():
        others = [c.handles[name] for c in cohorts]
        if isinstance(handle, TileHandle):
            handles[name] = TileHandle(handle.tile, join([h.version for h in others]))  # type: ignore[union-attr]
        else:
            member = join([h.member for h in others])  # type: ignore[union-attr]
            sequence = join([h.sequence for h in others])  # type: ignore[union-attr]
            shape = tuple(join(list(e)) for e in zip(*(h.shape for h in others), strict=True))  # type: ignore[union-attr]
            handles[name] = SlotHandle(handle.channel, member, sequence, shape, handle.dtype)
    return Cohort(first.stream, units[order], first.pc, ints, handles, first.level)


# --- queues of messages between units

OPPOSITE = {"E": "W", "W": "E", "N": "S", "S": "N", "up": "down", "down": "up"} | {
    f"global_{a}": f"global_{b}" for a, b in (("E", "W"), ("W", "E"), ("N", "S"), ("S", "N"))
}


class InvalidDirection(PlanError):
    """A direction in which a unit has no neighbour."""


def nobody_there(unit: int, channel: Channel, member: int, sending: bool) -> InvalidDirection:
    """Return a unit that sends to nobody's queue ``member``, or waits at a queue that nobody feeds."""
    name = channel.names[member] if 0 <= member < len(channel.names) else None
    if sending:
        name = OPPOSITE.get(name or "")
    where = f" in direction {name}" if name else ""
    does = "sends" if sending else "receives"
    return InvalidDirection(
        f"unit {unit} {does}{where} on channel '{channel.name}', where it has no neighbour",
        advice="let only units with a neighbour there do so",
    )


class Queues:
    """The queues of one channel family: messages sent and received, and who still holds which slot."""

    def __init__(self, channel: Channel, units: int):
        self.channel = channel
        self.open = False  # whether the other end may be elsewhere, and always goes along
        self.source = channel.source.compile()
        shape = (units, channel.members)
        self.sent = np.zeros(shape, dtype=np.int64)
        self.received = np.zeros(shape, dtype=np.int64)
        # A slot in flight counts 1; each name bound to it counts 1 as well.
        self.holds = np.zeros((*shape, channel.slots), dtype=np.int16)
        self.nbytes = np.zeros((*shape, channel.slots), dtype=np.int64)
        # The same by the number of the queue (``at``) or of the slot (``place``), which is faster to look up.
        self.sent_at, self.received_at = self.sent.ravel(), self.received.ravel()
        self.sender_at = np.zeros(self.sent.size, dtype=np.int64)  # the command that sent last: (stream, pc)
        self.holds_of, self.nbytes_of = self.holds.ravel(), self.nbytes.ravel()

    def at(self, units: Any, member: Value) -> Any:
        """Return numbers of queues."""
        return units * self.channel.members + member

    def place(self, at: Any, slot: Value) -> Any:
        """Return numbers of slots, of queues ``at``."""
        return at * self.channel.slots + slot


@dataclass(frozen=True)
class Route:
    """Where the units of a cohort send: queues that they feed, looked at once."""

    queues: Queues
    to: Any
    member: Value
    at: Any
    known_by: tuple[Any, ...]
