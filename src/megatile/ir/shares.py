"""How views divide tensors over units, as expressions of a unit's number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.core.errors import MegatileError
from megatile.core.expr import Const, Expr, ceil_div, known, minimum, simplify, table
from megatile.core.placement import Layout, Mesh, Part, Shard, is_whole
from megatile.ir.launch import Launch
from megatile.ir.nodes import Chain
from megatile.ir.program import seen

MAX_LISTED_UNITS = 4096
"""Units whose elements of a view are written out in a table: it is part of every text of the Program."""
Cut = tuple[Expr, Expr]
"""Start and length of a unit's part of a dimension."""


class ViewError(MegatileError):
    """A view that cannot be written as a region of its tensor."""


@dataclass(frozen=True)
class Listed:
    """A unit's elements of a dimension, where they are no run: ``sets[row]``."""

    row: Expr
    sets: tuple[tuple[int, ...], ...]


def shares(
    launch: Launch, chain: Chain, shape: tuple[int, ...], low: int, rank: Callable[[int, int], Expr]
) -> list[Cut] | list[Listed]:
    """Return a unit's part of every dimension through views; the first view divides what a unit at depth
    ``low`` has. ``rank(low, high)`` is the number of the unit at depth ``high`` below that at ``low``."""
    parts: list[Cut] = [(Const(0), Const(extent)) for extent in shape]
    first = low
    for view in chain:
        high = launch.depth(view.scale)
        if not is_whole(view.layout):
            if not _is_cut(view.layout):
                return _listed(launch, chain, shape, first, rank)
            grid = launch.grid(view.scale, launch.at(low))
            for dim, units, number in _divisions(view.layout, grid, rank(low, high)):
                parts[dim] = _divided(parts[dim], units, number)
        low = high
    return parts


def _divisions(layout: Layout, grid: tuple[int, ...], rank: Expr) -> list[tuple[int, int, Expr]]:
    """(dimension, units that share it, this unit's number among them)."""

    def along(axis: int) -> Expr:
        whole = rank // math.prod(grid[:axis])
        return whole if axis == len(grid) - 1 else whole % grid[axis]

    if isinstance(layout, Shard):
        if layout.axis is None:
            return [(layout.dim, math.prod(grid), rank)]
        return [(layout.dim, grid[layout.axis], along(layout.axis))]
    assert isinstance(layout, Mesh)
    return [(one.dim, grid[a], along(a)) for a, one in enumerate(layout.axes) if isinstance(one, Shard)]


def _divided(part: Cut, units: int, number: Expr) -> Cut:
    """Return the part of one of several units that share a part, in contiguous pieces."""
    start, length = part
    total = known(length)
    if total is not None and total % units == 0:
        return simplify(start + number * (total // units)), Const(total // units)
    size = ceil_div(length, units)
    low, high = minimum(number * size, length), minimum((number + 1) * size, length)
    return start + low, high - low


def _is_cut(layout: Layout) -> bool:
    if isinstance(layout, Mesh):
        return all(not isinstance(a, Shard) or a.order == "contiguous" for a in layout.axes)
    return isinstance(layout, Shard) and layout.order == "contiguous"


def _listed(
    launch: Launch, chain: Chain, shape: tuple[int, ...], low: int, rank: Callable[[int, int], Expr]
) -> list[Cut] | list[Listed]:
    """Return parts that an owner function tells, unit by unit: runs where all are."""
    high = launch.depth(chain[-1].scale)
    counts = [s.count for s in launch.scales[low:high]]
    units = math.prod(counts)
    if units > MAX_LISTED_UNITS:
        raise ViewError(
            f"an owner function divides a tensor over {units} units, more than {MAX_LISTED_UNITS}",
            place=chain[-1].place,
            advice="use T.Shard, which needs no table",
        )
    rows = [
        seen(launch, chain, shape, np.unravel_index(number, counts) if counts else (), low)
        for number in range(units)
    ]
    row = rank(low, high)
    if all(isinstance(share, tuple) for part in rows for share in part):
        return [_run([part[d] for part in rows], row) for d in range(len(shape))]
    return [Listed(row, tuple(_indices(part, d) for part in rows)) for d in range(len(shape))]


def _run(column: list[Any], row: Expr) -> Cut:
    starts = [a for a, _ in column]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    even = all(start == starts[0] + step * number for number, start in enumerate(starts))
    start = simplify(row * step + starts[0]) if even else table(starts, row)
    return start, table([b - a for a, b in column], row)


def _indices(part: Part, dim: int) -> tuple[int, ...]:
    share = part[dim]
    return tuple(range(*share)) if isinstance(share, tuple) else tuple(int(i) for i in share)
