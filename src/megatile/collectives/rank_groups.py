"""Who talks to whom: ranks along one dimension, as arithmetic on the unit's number.

A ``RankGroup`` is a family of equally large groups (all rows of a grid, all nodes, or simply all ranks) in
which a unit has the position ``me`` and reaches position p at ``unit_at(p)``. A phase written for a group
works for all ranks, for every row, for every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from operator import mul

import numpy as np

from megatile.core.expr import ZERO, Expr, IntLike, expr, select, table, unit


@dataclass(frozen=True)
class RankGroup:
    """Groups of ``size`` units, ``stride`` apart.

    ``seat`` is the number of the block that belongs to a position; lanes differ in positions, not in blocks.
    """

    size: int
    me: Expr
    unit_at: Callable[[IntLike], Expr]
    stride: int = 1
    seat: Callable[[IntLike], IntLike] = expr
    lanes: int = 1
    lane_of: Callable[[Expr], RankGroup] | None = None

    def after(self, steps: IntLike) -> Expr:
        """Return the unit ``steps`` positions on, round the ring."""
        return self.unit_at((self.me + steps) % self.size)

    def lane(self, index: IntLike) -> RankGroup:
        """Return the path that lane ``index`` of a ring takes through the group."""
        return self if self.lane_of is None else self.lane_of(expr(index))


def all_ranks(size: int) -> RankGroup:
    """Return all units as one group: the plainest expressions."""
    return RankGroup(size, unit, expr)


def nearest_last(size: int, core: int) -> RankGroup:
    """Return all units, the first ``core`` of them (a power of two) at positions with their bits reversed:
    positions far apart are neighbours, so that the largest blocks of a halving exchange take the shortest
    path."""
    last = core.bit_length() - 2

    def swapped(position: IntLike) -> Expr:
        place = expr(position)
        found = sum(((place >> i & 1) << (last - i) for i in range(last + 1)), ZERO)
        return found if core == size else select(place < core, found, place)

    return RankGroup(size, swapped(unit), swapped)


def bidirectional(group: RankGroup) -> RankGroup:
    """Return a group whose ring runs in both directions: lane 0 upwards, lane 1 downwards."""

    def lane(index: Expr) -> RankGroup:
        def turned(position: IntLike) -> Expr:
            return select(index, group.size - 1 - expr(position), position)

        me = turned(group.me)
        return RankGroup(group.size, me, lambda p: group.unit_at(turned(p)), group.stride, turned)

    return replace(group, lanes=2, lane_of=lane)


def along_cycles(orders: Sequence[Sequence[int]]) -> RankGroup:
    """Everybody, with one ring per given cycle (an order of all units)."""
    size = len(orders[0])
    ranks, places = (x.ravel().tolist() for x in (np.asarray(orders), np.argsort(orders, axis=1)))

    def lane(index: Expr) -> RankGroup:
        def unit_at(position: IntLike) -> Expr:
            return table(ranks, index * size + expr(position))

        return RankGroup(size, table(places, index * size + unit), unit_at, seat=unit_at)

    return replace(all_ranks(size), lanes=len(orders), lane_of=lane)


def _apart(size: int, stride: int) -> RankGroup:
    base = unit // (size * stride) * (size * stride) + unit % stride
    return RankGroup(size, (unit // stride) % size, lambda p: base + expr(p) * stride, stride)


def along(extents: Sequence[int]) -> tuple[RankGroup, ...]:
    """Return one group per dimension of a grid (the first varies fastest)."""
    if len(extents) == 1:
        return (all_ranks(extents[0]),)
    return tuple(map(_apart, extents, accumulate(extents, mul, initial=1)))


def beyond(nesting: Sequence[int], steps: IntLike, back: bool = False) -> Expr:
    """Return the unit ``steps`` on, counted level by level (inside a node first), the same way from every
    unit: a step is as many positions round each level as its digits say."""
    rest, place, found = expr(steps), unit, ZERO
    stride = 1
    for extent in nesting:
        by = rest % extent if stride * extent < prod(nesting) else rest
        found = found + (place - by if back else place + by) % extent * stride
        rest, place, stride = rest // extent, place // extent, stride * extent
    return found
