"""Who talks to whom: ranks along one dimension, as arithmetic on the unit's number.

A ``RankGroup`` is a family of equally large groups (all rows of a grid, all nodes, or simply all ranks) in
which a unit has the position ``me`` and reaches position p at ``unit_at(p)``. A phase written for a group
works for all ranks, for every row, for every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from megatile.core.expr import ZERO, Expr, IntLike, expr, select, table, unit


@dataclass(frozen=True)
class RankGroup:
    """Groups of ``size`` units, ``stride`` apart."""

    size: int
    stride: int = 1

    @property
    def me(self) -> Expr:
        return (unit // self.stride) % self.size

    def unit_at(self, position: IntLike) -> Expr:
        whole = self.size * self.stride
        base = unit // whole * whole + unit % self.stride
        return base + expr(position) * self.stride

    def after(self, steps: IntLike) -> Expr:
        """The unit ``steps`` positions on, round the ring."""
        return self.unit_at((self.me + steps) % self.size)

    def seat(self, position: IntLike) -> IntLike:
        """The number of the block that belongs to a position; lanes differ in positions, not in blocks."""
        return position

    @property
    def lanes(self) -> int:
        return 1

    def lane(self, index: IntLike) -> RankGroup:
        """The path that lane ``index`` of a ring takes through the group."""
        return self


@dataclass(frozen=True)
class AllRanks(RankGroup):
    """All units as one group: the plainest expressions."""

    @property
    def me(self) -> Expr:
        return unit

    def unit_at(self, position: IntLike) -> Expr:
        return expr(position)


@dataclass(frozen=True)
class NearestLast(RankGroup):
    """All units, the first ``core`` of them (a power of two) at positions with their bits reversed: positions
    far apart are neighbours, so that the largest blocks of a halving exchange take the shortest path."""

    core: int = 1

    @property
    def me(self) -> Expr:
        return self.unit_at(unit)

    def unit_at(self, position: IntLike) -> Expr:
        place, bits = expr(position), self.core.bit_length() - 1
        swapped: Expr = ZERO
        for i in range(bits):
            swapped = swapped + ((place >> i & 1) << (bits - 1 - i))
        return swapped if self.core == self.size else select(place < self.core, swapped, place)


def beyond(nesting: Sequence[int], steps: IntLike, back: bool = False) -> Expr:
    """The unit ``steps`` on, counted level by level (inside a node first), the same way from every unit: a
    step is as many positions round each level as its digits say."""
    rest, place, found = expr(steps), unit, ZERO
    stride = 1
    for extent in nesting:
        by = rest % extent if stride * extent < prod(nesting) else rest
        found = found + (place - by if back else place + by) % extent * stride
        rest, place, stride = rest // extent, place // extent, stride * extent
    return found


@dataclass(frozen=True)
class BothWays(RankGroup):
    """A group whose ring runs in both directions: lane 0 upwards, lane 1 downwards."""

    inner: RankGroup | None = None

    @property
    def lanes(self) -> int:
        return 2

    def lane(self, index: IntLike) -> RankGroup:
        assert self.inner is not None
        return _Lane(self.size, self.stride, self.inner, expr(index))


@dataclass(frozen=True)
class _Lane(RankGroup):
    inner: RankGroup = RankGroup(1)
    index: Expr = ZERO

    @property
    def me(self) -> Expr:
        return select(self.index, self.size - 1 - self.inner.me, self.inner.me)

    def unit_at(self, position: IntLike) -> Expr:
        return self.inner.unit_at(self.seat(position))

    def seat(self, position: IntLike) -> IntLike:
        return select(self.index, self.size - 1 - expr(position), position)


@dataclass(frozen=True)
class Cycles(RankGroup):
    """Everybody, with one ring per given cycle (an order of all units)."""

    orders: tuple[tuple[int, ...], ...] = ()

    @staticmethod
    def of(cycles: Sequence[Sequence[int]]) -> Cycles:
        return Cycles(len(cycles[0]), orders=tuple(tuple(c) for c in cycles))

    @property
    def lanes(self) -> int:
        return len(self.orders)

    def lane(self, index: IntLike) -> RankGroup:
        return _Cycle(self.size, 1, self.orders, expr(index))


@dataclass(frozen=True)
class _Cycle(RankGroup):
    orders: tuple[tuple[int, ...], ...] = ()
    index: Expr = ZERO

    @property
    def me(self) -> Expr:
        places = [0] * (self.size * len(self.orders))
        for lane, order in enumerate(self.orders):
            for position, rank in enumerate(order):
                places[lane * self.size + rank] = position
        return table(places, self.index * self.size + unit)

    def unit_at(self, position: IntLike) -> Expr:
        flat = [rank for order in self.orders for rank in order]
        return table(flat, self.index * self.size + expr(position))

    def seat(self, position: IntLike) -> IntLike:
        return self.unit_at(position)


def along(extents: Sequence[int]) -> tuple[RankGroup, ...]:
    """One group per dimension of a grid (the first varies fastest)."""
    if len(extents) == 1:
        return (AllRanks(extents[0]),)
    groups, stride = [], 1
    for extent in extents:
        groups.append(RankGroup(extent, stride))
        stride *= extent
    return tuple(groups)
