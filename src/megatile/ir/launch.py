"""Where a Program runs: its scales and their units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from megatile.core.expr import Expr, ceil_div, known, minimum, simplify
from megatile.core.placement import Layout, Mesh, Shard

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

    def is_private(self, scale: str) -> bool:
        """Whether tiles of a scale end with the dispatched instance they are in."""
        return not self.resident and self.depth(scale) >= self.depth(self.dispatch)

    def is_dispatched(self, low: int, high: int) -> bool:
        """Whether a region from depth ``low`` to ``high`` starts instances inside the units that hold
        them."""
        return low <= self.depth(self.host) < high

    @property
    def devices(self) -> int:
        return self.count("device") if any(s.name == "device" for s in self.scales) else 1

    def depth(self, scale: str) -> int:
        """How many scales down: the whole launch is 0."""
        if scale == ROOT:
            return 0
        for number, one in enumerate(self.scales):
            if one.name == scale:
                return number + 1
        raise KeyError(scale)

    def at(self, depth: int) -> str:
        """The scale at a depth."""
        return self.scales[depth - 1].name if depth else ROOT

    def extents(self, scale: str) -> tuple[int, ...]:
        return self.scales[self.depth(scale) - 1].extents

    def count(self, scale: str, within: str = ROOT) -> int:
        """Units of ``scale`` below one unit of ``within``."""
        return math.prod(s.count for s in self.scales[self.depth(within) : self.depth(scale)])

    def grid(self, scale: str, within: str = ROOT) -> tuple[int, ...]:
        """Extents of the units of ``scale`` below ``within``: several scales are one axis each, x first."""
        between = self.scales[self.depth(within) : self.depth(scale)]
        shown = [s for s in between if s.count > 1] or list(between[-1:])
        if len(shown) == 1:
            return shown[0].extents
        return (math.prod(s.count for s in between),)


# --- How views divide tensors over units, as expressions of a unit's number; for Plans and for machine code


Cut = tuple[Expr, Expr]
"""Start and length of a unit's part of a dimension."""


def divisions(layout: Layout, grid: tuple[int, ...], rank: Expr) -> list[tuple[int, int, Expr]]:
    """(dimension, units that share it, this unit's number among them)."""

    def along(axis: int) -> Expr:
        whole = rank // math.prod(grid[:axis])
        return whole if axis == len(grid) - 1 else whole % grid[axis]

    if isinstance(layout, Shard):
        if layout.axis is None:
            return [(layout.dim, math.prod(grid), rank)]
        return [(layout.dim, grid[layout.axis], along(layout.axis))]
    if isinstance(layout, Mesh):
        axes = enumerate(layout.axes)
        return [(one.dim, grid[a], along(a)) for a, one in axes if isinstance(one, Shard)]
    return []


def divided(part: Cut, units: int, number: Expr) -> Cut:
    """The part of one of several units that share a part, in contiguous pieces."""
    start, length = part
    size = ceil_div(length, units)
    if known(length) is not None and (known(length) or 0) % units == 0:
        return simplify(start + number * size), size
    low, high = minimum(number * size, length), minimum((number + 1) * size, length)
    return start + low, high - low
