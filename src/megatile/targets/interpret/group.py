"""Units that run one region together: who is there, where they meet, and when instances begin that do not all
fit at once."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from megatile.core.crossing import Crossings
from megatile.core.placement import coordinates
from megatile.ir import nodes as n
from megatile.ir.launch import Launch
from megatile.targets.interpret.errors import DataRaceError, DeadlockError, RunError
from megatile.targets.interpret.expressions import unflatten
from megatile.targets.interpret.units import Unit, describe

MAX_INSTANCES = 4_000_000
"""Instances of a launch that are run."""

WINDOW = 64
"""Instances started before any has finished, if none names another: those started can proceed."""

Spawn = Callable[["Group", int, tuple[int, ...], dict[Any, Any]], None]
END_ADVICE = "let it wait (T.barrier) until others are done with its tiles"


class Meeting:
    """A barrier or collective that some units have reached."""

    def __init__(self, node: n.Node, ranks: Sequence[int], needed: int):
        self.node = node
        self.ranks = ranks
        self.needed = needed
        """How many units must come."""
        self.arrived: dict[int, Unit] = {}
        self.nodes: dict[int, n.Node] = {}

    def units(self) -> list[Unit]:
        return [self.arrived[rank] for rank in sorted(self.arrived)]

    def missing(self) -> list[int]:
        return [r for r in self.ranks if r not in self.arrived]


class Group:
    """The units of a scale below one unit, while they run a region."""

    def __init__(self, launch: Launch, parent: Unit, node: n.ScaleRegion, within: str):
        self.launch = launch
        self.parent = parent
        self.node = node
        self.scale = node.scale
        self.within = within
        self.grid = launch.grid(node.scale, within)
        self.size = math.prod(self.grid)
        self.members: dict[int, Unit] = {}
        self.finished: set[int] = set()
        self.retired: dict[int, Unit] = {}
        self.ranks: dict[int, int] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.crossings = Crossings()
        self.left = self.size
        self.waved = False
        """Whether the tiles of a finished unit are gone, because another instance takes its place."""

    def join(self, rank: int, unit: Unit) -> None:
        self.members[rank] = unit
        self.ranks[unit.number] = rank

    def rank(self, unit: Unit) -> int:
        """Return the rank of a member, or of the member that a unit is in."""
        return self.ranks[unit.exchange(self.launch.depth(self.scale)).number]

    def line(self, rank: int, axis: int | None) -> range:
        """Return the ranks that act together with ``rank``: all, or those along one axis."""
        if axis is None:
            return range(self.size)
        coords = coordinates(rank, self.grid)
        stride = math.prod(self.grid[:axis])
        first = rank - coords[axis] * stride
        return range(first, first + self.grid[axis] * stride, stride)

    def peer(self, unit: Unit, number: int, axis: int | None, name: str) -> Unit:
        """Return the unit whose tile ``name`` is meant by ``dst=number`` or ``src=number``."""
        member = self.find(unit, number, axis)
        if member is None:
            rank = self.line(self.rank(unit), axis)[number]
            raise DataRaceError(
                f"data race on '{name}': {self.scale} {rank} has finished and its tiles are gone; nothing "
                f"made it wait for {describe(unit, self.launch)}",
                advice=END_ADVICE,
            )
        return member

    def find(self, unit: Unit, number: int, axis: int | None) -> Unit | None:
        """Return the unit that ``dst=number`` means; None if it has finished and its tiles are gone."""
        line = self.line(self.rank(unit), axis)
        if not 0 <= number < len(line):
            raise RunError(
                f"there is no {self.scale} {number}: ranks go from 0 to {len(line) - 1}",
                advice="wrap it round: (rank + 1) % size",
            )
        rank = line[number]
        member = self.members.get(rank)
        if member is None:
            if rank in self.finished and not self.waved:
                return self.retired[rank]
            if rank in self.finished:
                return None
            raise DeadlockError(
                f"{self.scale} {rank} is not resident yet: more instances were launched than fit at once",
                advice="launch fewer, or let each work alone and exchange data in a later region",
            )
        return member

    def arrive(
        self, unit: Unit, node: n.Node, axis: int | None, key: Any, only: int | tuple[int, ...] | None = None
    ) -> Meeting | None:
        """Come to a meeting of all, of ``only`` these ranks or so many; the meeting when it is complete. Of
        units inside members, those at the same place in each of them meet."""
        rank = self.rank(unit)
        line = self.line(rank, axis)
        ranks = [line[o] for o in only if o < len(line)] if isinstance(only, tuple) else line
        if rank not in ranks:
            raise RunError(
                f"{describe(unit, self.launch)} comes to a barrier of units {', '.join(map(str, ranks))}",
                advice="only these may reach it: put it under 'if'",
            )
        place = (key, line[0], axis, only)
        meeting = self.meetings.get(place)
        if meeting is None:
            needed = only if isinstance(only, int) else len(ranks)
            meeting = self.meetings[place] = Meeting(node, ranks, needed)
        meeting.arrived[rank] = unit
        meeting.nodes[rank] = node
        if len(meeting.arrived) < meeting.needed:
            return None
        del self.meetings[place]
        return meeting

    def meeting(self, unit: Unit, axis: int | None, key: Any) -> Meeting:
        """Return the meeting of all units that ``unit`` has come to."""
        return self.meetings[key, self.line(self.rank(unit), axis)[0], axis, None]

    def leave(self, unit: Unit) -> None:
        """A unit has finished the region."""
        rank = self.rank(unit)
        self.finished.add(rank)
        del self.members[rank]
        if not self.waved:
            self.retired[rank] = unit
        self.left -= 1

    def deserted(self) -> Meeting | None:
        """Return a meeting that can never be complete, because a unit has finished without it."""
        for meeting in self.meetings.values():
            missing = meeting.missing()
            if len(missing) - sum(rank in self.finished for rank in missing) < meeting.needed - len(
                meeting.arrived
            ):
                return meeting
        return None

    def partial(self, meeting: Meeting, body: tuple[n.Node, ...]) -> DeadlockError:
        node = meeting.node
        branches = [b for b in n.walk(body) if isinstance(b, n.If) and any(m == node for m in n.walk((b,)))]
        under = f", under the 'if' of line {branches[-1].span.line}" if branches and branches[-1].span else ""
        word = word_of(node)
        missing = [r for r in meeting.missing() if r in self.finished or r in self.members]
        shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        waiting = next(iter(meeting.arrived.values()))
        return DeadlockError(
            f"{word} is not reached by {self.scale} {shown}; {describe(waiting, self.launch)} waits there"
            + under,
            place=node.place,
            advice=f"every {self.scale} of the region must reach it: move it out of the 'if', before returns",
        )


class Dispatcher:
    """Starts the instances of one region.

    An instance is a unit of the dispatched scale, or a larger one (a cluster) that takes as many places as it
    has dispatched units. ``spawn(group, rank, path, frame)`` starts a unit; an instance has one frame.
    """

    def __init__(self, launch: Launch, group: Group, spawn: Spawn, window: int | None):
        low, high = group.parent.depth, launch.depth(group.scale)
        host, instance = launch.depth(launch.host), min(high, launch.depth(launch.dispatch))
        self.group = group
        self.spawn = spawn
        self.window = window
        self.counts = [s.count for s in launch.scales[low:high]]
        self.inner = math.prod(self.counts[instance - low :])
        holders = math.prod(self.counts[: host - low])
        each = math.prod(self.counts[host - low : instance - low])
        places = math.prod(s.count for s in launch.scales[instance : launch.depth(launch.dispatch)])
        self.slots = max(launch.slots // places, 1) if launch.slots else each
        if holders * each > MAX_INSTANCES:
            raise RunError(
                f"{holders * each} instances of '{group.scale}' are more than {MAX_INSTANCES}",
                advice="run a smaller grid: the program is the same",
            )
        self.queues = [deque(range(p * each, (p + 1) * each)) for p in range(holders)]
        self.running: list[set[int]] = [set() for _ in range(holders)]

    @property
    def queued(self) -> int:
        """Instances that wait for a place."""
        return sum(map(len, self.queues))

    def admit(self) -> bool:
        """Start instances where there is room; whether any was started."""
        started = False
        for queue, running in zip(self.queues, self.running, strict=True):
            running -= {instance for instance in running if self._has_finished(instance)}
            budget = self.window or len(queue)
            while queue and len(running) < self.slots and budget:
                running.add(self._begin(queue.popleft()))
                budget -= 1
                started = True
        return started

    def _begin(self, instance: int) -> int:
        frame: dict[Any, Any] = {}
        for rank in self._ranks(instance):
            self.spawn(self.group, rank, self.group.parent.path + unflatten(rank, self.counts), frame)
        return instance

    def _ranks(self, instance: int) -> range:
        return range(instance * self.inner, (instance + 1) * self.inner)

    def _has_finished(self, instance: int) -> bool:
        return all(rank in self.group.finished for rank in self._ranks(instance))


def word_of(node: n.Node) -> str:
    """Return the user's word for a statement that waits."""
    if isinstance(node, n.Collective):
        kind = {"gather_view": "allgather", "scatter_view": "reduce_scatter"}.get(node.kind, node.kind)
        return f"T.{kind}"
    return f"T.{type(node).__name__.lower()}"
