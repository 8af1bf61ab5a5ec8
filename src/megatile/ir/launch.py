"""Where a Program runs: its scales and their units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

ROOT = "launch"
"""Name of the scale of the whole launch, above the largest scale named in it."""


@dataclass(frozen=True)
class Param:
    """A tensor argument; extents are numbers, or names of symbolic extents."""

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    is_input: bool = False
    """Whether nothing may write it."""
    parts: tuple[Any, ...] = ()
    """Of a Program without views: how units see it, as chains of views (``nodes.Chain``)."""
    home: tuple[str, str] | None = None
    """Where tensors are placed: its memory, and the scale whose units each hold a part or a copy."""


@dataclass(frozen=True)
class LaunchScale:
    """Units of one scale under one unit of the next larger scale of the launch; the first extent is x."""

    name: str
    extents: tuple[int, ...]
    named: bool = True

    @property
    def count(self) -> int:
        return math.prod(self.extents)


@dataclass(frozen=True)
class Launch:
    """The scales of a launch, largest first, and the scale whose instances run in waves."""

    scales: tuple[LaunchScale, ...]
    dispatch: str
    slots: int | None = None
    """Instances of the dispatched scale that fit at once in one unit of ``host``; None: all do."""
    host: str = ROOT
    """The scale whose units hold the dispatched instances (the device)."""
    resident: bool = False
    """Whether its instances stay for the whole launch (devices), instead of giving up their place
    (blocks)."""
    device_scale: str = "device"
    """The machine's name of the scale of devices."""

    def is_private(self, scale: str) -> bool:
        """Return whether tiles of a scale end with the dispatched instance they are in."""
        return not self.resident and self.depth(scale) >= self.depth(self.dispatch)

    def is_dispatched(self, low: int, high: int) -> bool:
        """Return whether a region from depth ``low`` to ``high`` starts instances inside the units that hold
        them."""
        return low <= self.depth(self.host) < high

    @property
    def devices(self) -> int:
        return self.count(self.device_scale) if any(s.name == self.device_scale for s in self.scales) else 1

    def depth(self, scale: str) -> int:
        """Return how many scales down: the whole launch is 0."""
        return self._depths[scale]

    @cached_property
    def _depths(self) -> dict[str, int]:
        return {ROOT: 0} | {one.name: number for number, one in enumerate(self.scales, 1)}

    def at(self, depth: int) -> str:
        """Return the scale at a depth."""
        return self.scales[depth - 1].name if depth else ROOT

    def extents(self, scale: str) -> tuple[int, ...]:
        return self.scales[self.depth(scale) - 1].extents

    def count(self, scale: str, within: str = ROOT) -> int:
        """Return units of ``scale`` below one unit of ``within``."""
        return math.prod(s.count for s in self.scales[self.depth(within) : self.depth(scale)])

    def grid(self, scale: str, within: str = ROOT) -> tuple[int, ...]:
        """Return extents of the units of ``scale`` below ``within``: several scales are one axis each, x
        first."""
        between = self.scales[self.depth(within) : self.depth(scale)]
        shown = [s for s in between if s.count > 1] or list(between[-1:])
        if len(shown) == 1:
            return shown[0].extents
        return (math.prod(s.count for s in between),)
