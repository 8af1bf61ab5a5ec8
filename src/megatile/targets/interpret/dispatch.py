"""Instances that do not all fit at once: the next one takes the first free place."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from megatile.ir.launch import Launch
from megatile.targets.interpret.errors import RunError
from megatile.targets.interpret.expressions import unflatten
from megatile.targets.interpret.group import Group

MOST_INSTANCES = 4_000_000

WINDOW = 64
"""Instances started before any has finished, if none names another: those started can proceed."""

Spawn = Callable[[Group, int, tuple[int, ...], dict[Any, Any]], None]


def is_dispatched(launch: Launch, low: int, high: int) -> bool:
    """Whether a region from depth ``low`` to ``high`` starts instances inside the units that hold them."""
    return low <= launch.depth(launch.host) < high


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
        if holders * each > MOST_INSTANCES:
            raise RunError(
                f"{holders * each} instances of '{group.scale}' are more than {MOST_INSTANCES}",
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
