"""Accesses to one storage, kept to find races.

A row is a box (copy dimension first), who, when, how. Repeated accesses update their row; rows whose agent
has
ended at the top of the launch are ordered before everything and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from megatile.core.forkjoin import Agent, is_ordered, settled
from megatile.ir.nodes import Span
from megatile.targets.interpret.units import Unit

READ, WRITE, ATOMIC = 0, 1, 2
MIN_ITEMS_BEFORE_CLEANING = 8
"""Accesses to keep before ordered ones are looked for."""
Items = tuple[Any, ...]
"""Per dimension (copies first): (start, stop) or a sorted array of indices; or one array of flat element
numbers."""


@dataclass(frozen=True)
class Row:
    """One access: who, when, how, which elements (``points`` if they are no product of index sets), where."""

    agent: Agent
    time: int
    kind: int
    items: Items
    points: Any
    span: Span | None

    def key(self) -> Any:
        """Equal for accesses that can stand for each other."""
        if self.points is None and all(isinstance(i, tuple) for i in self.items):
            return (self.agent.number, self.kind, self.items)
        return object()

    def box(self) -> list[tuple[int, int]]:
        return _box(self.items)


@dataclass(frozen=True)
class Conflict:
    """An earlier access that races with the present one."""

    agent: Agent
    kind: int
    span: Span | None


class History:
    """The accesses of one storage.

    A few are compared one by one; of many, those near in a grid.
    """

    def __init__(self, rank: int):
        self.rank = rank
        self.clear(MIN_ITEMS_BEFORE_CLEANING)

    def clear(self, size: int) -> None:
        self.low = np.zeros((size, self.rank), np.int64)
        self.high = np.zeros((size, self.rank), np.int64)
        self.rows: list[Row] = []
        self.keys: dict[Any, int] = {}
        self.grid: Grid | None = None
        self.only: Agent | None = None

    def check(self, items: Items, kind: int, agent: Agent, unit: Unit, points: Any) -> Conflict | None:
        """Return the first earlier access that conflicts and is not ordered before."""
        if not self.rows or self.only is agent:
            return None
        for at in self._candidates(items):
            row = self.rows[at]
            alike = kind == row.kind != WRITE  # two reads, or two atomic changes
            if alike or row.agent is agent or is_ordered(row.agent, row.time, unit):
                continue
            if _overlap((row.items, row.points), (items, points)):
                return Conflict(row.agent, row.kind, row.span)
        return None

    def _candidates(self, items: Items) -> Iterable[int]:
        """Return rows that may share an element with the box."""
        size = len(self.rows)
        if self.grid is None:
            return range(size)
        box = _box(items)
        near = self.grid.near(box)
        if near is not None:
            return near
        low, high = np.array(box, np.int64).T
        return np.flatnonzero(((self.low[:size] < high) & (self.high[:size] > low)).all(axis=1)).tolist()

    def add(self, items: Items, kind: int, agent: Agent, span: Span | None, points: Any) -> None:
        """Note an access; one that repeats takes the place of the earlier one."""
        row = Row(agent, agent.time, kind, items, points, span)
        key = row.key()
        at = self.keys.get(key)
        if at is not None:
            self.rows[at] = row
            return
        if len(self.rows) >= len(self.low):
            self._shrink_or_grow()
        self._append(row, key)

    def _append(self, row: Row, key: Any) -> None:
        at = len(self.rows)
        if self.grid is not None:
            box = row.box()
            self.low[at], self.high[at] = zip(*box, strict=True)
            self.grid.add(at, box)
        self.only = row.agent if not self.rows else (self.only if self.only is row.agent else None)
        self.rows.append(row)
        self.keys[key] = at

    def _shrink_or_grow(self) -> None:
        """Rows of agents that were joined become rows of those they returned to; equal ones merge."""
        kept: dict[Any, Row] = {}
        for row in self.rows:
            agent, time = settled(row.agent, row.time)
            if agent.parent is not None:
                row = replace(row, agent=agent, time=time)
                key = row.key()
                if key not in kept or kept[key].time < time:
                    kept[key] = row
        self.clear(max(MIN_ITEMS_BEFORE_CLEANING, 2 * len(kept)))
        if len(kept) >= MIN_ITEMS_BEFORE_CLEANING:
            self.grid = Grid(typical([row.box() for row in kept.values()]))
        for key, row in kept.items():
            self._append(row, key)


def _box(items: Items) -> list[tuple[int, int]]:
    """Return the smallest box around the elements."""
    return [item if isinstance(item, tuple) else (int(item[0]), int(item[-1]) + 1) for item in items]


def _overlap(left: Any, right: Any) -> bool:
    """Return whether two accesses whose boxes meet have an element in common."""
    (items_a, points_a), (items_b, points_b) = left, right
    if points_a is not None and points_b is not None:
        shape = tuple(np.maximum(points_a.max(axis=0), points_b.max(axis=0)) + 1)
        flat_a, flat_b = (np.ravel_multi_index(tuple(p.T), shape) for p in (points_a, points_b))
        return bool(np.isin(flat_a, flat_b).any())
    if points_a is not None or points_b is not None:
        points, items = (points_a, items_b) if points_a is not None else (points_b, items_a)
        return _points_in(points, items)
    return all(_items_overlap(a, b) for a, b in zip(items_a, items_b, strict=True))


def _points_in(points: np.ndarray, items: Items) -> bool:
    """``points`` is an array of coordinates, one column per dimension."""
    inside = np.ones(len(points), bool)
    for d, item in enumerate(items):
        column = points[:, d]
        inside &= (
            (column >= item[0]) & (column < item[1]) if isinstance(item, tuple) else np.isin(column, item)
        )
    return bool(inside.any())


def _items_overlap(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return bool(a[0] < b[1] and b[0] < a[1])
    if isinstance(a, tuple):
        a, b = b, a
    if isinstance(b, tuple):
        return bool(((a >= b[0]) & (a < b[1])).any())
    return bool(np.isin(a, b).any())


MAX_INDEXED_CELLS = 32
"""A box that lies in more cells than this is always a candidate."""

Box = Sequence[tuple[int, int]]


class Grid:
    """Boxes by the cells of a grid they lie in, so that those near a box are found without looking at all.

    Numbers of boxes; ``cell`` is the extent of a cell in each dimension."""

    def __init__(self, cell: tuple[int, ...]):
        self.cell = cell
        self.cells: dict[tuple[int, ...], list[int]] = {}
        self.large: list[int] = []

    def add(self, number: int, box: Box) -> None:
        cells = self._cells(box)
        if cells is None:
            self.large.append(number)
            return
        for cell in cells:
            self.cells.setdefault(cell, []).append(number)

    def near(self, box: Box) -> Iterable[int] | None:
        """Return numbers of boxes that may share an element with ``box``; None if it lies in too many
        cells."""
        cells = self._cells(box)
        if cells is None:
            return None
        if len(cells) == 1 and not self.large:
            return self.cells.get(cells[0], ())
        found = self.large
        for cell in cells:
            found = found + self.cells[cell] if cell in self.cells else found
        return found

    def _cells(self, box: Box) -> list[tuple[int, ...]] | None:
        ranges, count = [], 1
        for (low, high), size in zip(box, self.cell, strict=True):
            first, last = low // size, (high - 1) // size
            count *= last - first + 1
            if count > MAX_INDEXED_CELLS:
                return None
            ranges.append(range(first, last + 1))
        return list(product(*ranges))


def typical(boxes: Sequence[Box]) -> tuple[int, ...]:
    """Return a cell for boxes like these: the middle one of their extents in each dimension."""
    middle = len(boxes) // 2
    columns = zip(*([high - low for low, high in box] for box in boxes), strict=True)
    return tuple(max(sorted(column)[middle], 1) for column in columns)
