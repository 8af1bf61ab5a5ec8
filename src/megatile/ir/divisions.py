"""How views divide tensors over units, as expressions of a unit's number; for Plans and for machine code."""

from __future__ import annotations

import math

from megatile.core.expr import Expr, ceil_div, known, minimum, simplify
from megatile.core.placement import Layout, Mesh, Shard

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
