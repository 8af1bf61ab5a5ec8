"""Units that run statements, and the order between what they do.

Order is kept by clocks: a unit's ``time`` advances when it releases (barrier, signal, fork, join); ``known``
maps another agent to the latest time of it that is ordered before this unit. Fork and join need no entries:
an ended agent stands for its parent at the time of the join, and an ancestor is suspended while a unit runs.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

from megatile.ir.nodes import Node
from megatile.ir.program import Launch

_numbers = count()
Clock = dict[int, int]


class Agent:
    """Something whose accesses are ordered: a unit, or the puts of one unit to another."""

    __slots__ = ("ended", "join_time", "number", "parent", "time")

    def __init__(self, parent: Unit | None):
        self.number = next(_numbers)
        self.parent = parent
        self.time = 0
        self.ended = False
        self.join_time = 0

    def end(self) -> None:
        assert self.parent is not None
        self.ended = True
        self.join_time = self.parent.time


class Channel(Agent):
    """Puts of one unit to one other; ordered among themselves."""

    __slots__ = ("owner", "peer")

    def __init__(self, owner: Unit, peer: Unit):
        super().__init__(owner.parent)
        self.owner = owner
        self.peer = peer


class Unit(Agent):
    """One unit of a scale, running a body."""

    __slots__ = (
        "channels",
        "depth",
        "fork_time",
        "frame",
        "group",
        "known",
        "node",
        "path",
        "task",
        "vars",
        "waiting",
    )

    def __init__(self, parent: Unit | None, path: tuple[int, ...], group: Any, frame: dict[Any, Any]):
        super().__init__(parent)
        self.path = path
        self.depth = len(path)
        self.group = group
        self.frame = frame
        self.vars: dict[str, Any] = dict(parent.vars) if parent else {}
        self.known: Clock = {}
        self.fork_time = 0
        self.channels: dict[int, Channel] = {}
        self.task: Generator[Any, None, None] | None = None
        self.node: Node | None = None
        self.waiting: Any = None

    def released(self, channels: list[Channel]) -> Clock:
        """Everything ordered before this moment, ``channels`` included; starts a new time."""
        clock: Clock = {}
        unit: Unit | None = self
        while unit is not None:
            _join(clock, unit.known)
            own = unit.time if unit is self else unit.fork_time
            clock[unit.number] = max(own, clock.get(unit.number, 0))
            unit = unit.parent
        for channel in channels:
            clock[channel.number] = channel.time
            channel.time += 1
        self.time += 1
        return clock

    def acquire(self, clock: Clock) -> None:
        known = dict(self.known)
        _join(known, clock)
        self.known = known


def _join(into: Clock, other: Clock) -> None:
    for number, time in other.items():
        if into.get(number, -1) < time:
            into[number] = time


def meet(units: list[Unit], with_puts: bool) -> None:
    """A barrier: everything any of the units did is ordered before what each does next."""
    merged: Clock = {}
    seen: set[int] = set()
    for unit in units:
        walk: Unit | None = unit
        while walk is not None:
            if id(walk.known) not in seen:
                seen.add(id(walk.known))
                _join(merged, walk.known)
            own = walk.time if walk is unit else walk.fork_time
            if merged.get(walk.number, -1) < own:
                merged[walk.number] = own
            walk = walk.parent
        if with_puts:
            for channel in unit.channels.values():
                merged[channel.number] = channel.time
                channel.time += 1
    for unit in units:
        unit.known = merged
        unit.time += 1


def is_ordered(agent: Agent, time: int, unit: Unit) -> bool:
    """Whether what ``agent`` did at ``time`` is ordered before what ``unit`` does now."""
    while agent.ended:
        time = agent.join_time
        assert agent.parent is not None
        agent = agent.parent
    walk: Unit | None = unit
    while walk is not None:
        if walk is agent or walk.known.get(agent.number, -1) >= time:
            return True
        walk = walk.parent
    return False


def describe(unit: Agent, launch: Launch) -> str:
    """``device 1, block (2, 0)``: the coordinates of a unit, scales with one unit left out."""
    from megatile.ir.layout import coordinates

    if isinstance(unit, Channel):
        return f"a put of {describe(unit.owner, launch)}"
    assert isinstance(unit, Unit)
    parts = []
    for scale, index in zip(launch.scales, unit.path, strict=False):
        if scale.count > 1:
            coords = coordinates(index, scale.extents)
            parts.append(f"{scale.name} {coords[0] if len(coords) == 1 else coords}")
    if parts:
        return ", ".join(parts)
    return f"{launch.scales[unit.depth - 1].name} 0" if unit.depth else "the launch"
