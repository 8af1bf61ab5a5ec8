"""Accesses to one storage, kept to find races.

A row is a box (copy dimension first), who, when, how. Repeated accesses update their row; rows whose agent
has
ended at the top of the launch are ordered before everything and dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.ir.nodes import Span
from megatile.targets.interpret.units import Agent, Unit, is_ordered

READ, WRITE, ATOMIC = 0, 1, 2
Items = tuple[Any, ...]
"""Per dimension (copies first): (start, stop) or a sorted array of indices; or one array of flat element
numbers."""


class History:
    """The accesses of one storage."""

    def __init__(self, rank: int):
        self.rank = rank
        self.low = np.zeros((8, rank), np.int64)
        self.high = np.zeros((8, rank), np.int64)
        self.kind = np.zeros(8, np.int8)
        self.rows: list[tuple[Agent, int, Any, Span | None]] = []
        self.keys: dict[Any, int] = {}
        self.only: Agent | None = None

    def check(self, items: Items, kind: int, agent: Agent, unit: Unit, points: Any) -> tuple[Any, ...] | None:
        """The first earlier access that conflicts and is not ordered before, as (agent, kind, span)."""
        if not self.rows or (self.only is agent):
            return None
        size = len(self.rows)
        low = np.array([i[0] for i in items], np.int64)
        high = np.array([i[1] if isinstance(i, tuple) else i[-1] + 1 for i in items], np.int64)
        hit = ((self.low[:size] < high) & (self.high[:size] > low)).all(axis=1)
        if kind == READ:
            hit &= self.kind[:size] != READ
        elif kind == ATOMIC:
            hit &= self.kind[:size] != ATOMIC
        for row in np.flatnonzero(hit):
            other, time, exact, span = self.rows[row]
            if other is agent or is_ordered(other, time, unit):
                continue
            if _overlap(exact, (items, points)):
                return other, int(self.kind[row]), span
        return None

    def add(self, items: Items, kind: int, agent: Agent, span: Span | None, points: Any) -> None:
        simple = points is None and all(isinstance(i, tuple) for i in items)
        key = (agent.number, kind, items) if simple else None
        at = self.keys.get(key) if key is not None else None
        if at is not None:
            self.rows[at] = (agent, agent.time, self.rows[at][2], span)
            return
        if len(self.rows) >= len(self.kind):
            self._shrink_or_grow()
        at = len(self.rows)
        for d, item in enumerate(items):
            self.low[at, d], self.high[at, d] = (
                (item[0], item[1]) if isinstance(item, tuple) else (item[0], item[-1] + 1)
            )
        self.kind[at] = kind
        self.only = agent if not self.rows else (self.only if self.only is agent else None)
        self.rows.append((agent, agent.time, (items, points), span))
        if key is not None:
            self.keys[key] = at

    def _shrink_or_grow(self) -> None:
        """Rows of ended agents become rows of those they returned to; equal ones merge."""
        old = list(zip(self.rows, self.kind[: len(self.rows)].tolist(), strict=True))
        self.rows, self.keys, self.only = [], {}, None
        kept: dict[Any, tuple[Agent, int, Any, Span | None, int]] = {}
        for (agent, time, exact, span), kind in old:
            while agent.ended:
                time = agent.join_time
                assert agent.parent is not None
                agent = agent.parent
            if agent.parent is None:
                continue
            items, points = exact
            simple = points is None and all(isinstance(i, tuple) for i in items)
            key = (agent.number, kind, items) if simple else object()
            kept[key] = (agent, time, exact, span, kind)
        size = max(8, 2 * len(kept))
        self.low = np.zeros((size, self.rank), np.int64)
        self.high = np.zeros((size, self.rank), np.int64)
        self.kind = np.zeros(size, np.int8)
        for agent, time, (items, points), span, kind in kept.values():
            self.add(items, kind, agent, span, points)
            agent_, _, exact, span_ = self.rows[-1]
            self.rows[-1] = (agent_, time, exact, span_)


def _overlap(left: Any, right: Any) -> bool:
    """Whether two accesses whose boxes meet have an element in common."""
    (items_a, points_a), (items_b, points_b) = left, right
    if points_a is not None and points_b is not None:
        shape = tuple(np.maximum(points_a.max(axis=0), points_b.max(axis=0)) + 1)
        flat_a, flat_b = (np.ravel_multi_index(tuple(p.T), shape) for p in (points_a, points_b))
        return bool(np.isin(flat_a, flat_b).any())
    if points_a is not None or points_b is not None:
        points, items = (points_a, items_b) if points_a is not None else (points_b, items_a)
        return _points_in(points, items)
    return all(_meet(a, b) for a, b in zip(items_a, items_b, strict=True))


def _points_in(points: np.ndarray, items: Items) -> bool:
    """``points`` is an array of coordinates, one column per dimension."""
    inside = np.ones(len(points), bool)
    for d, item in enumerate(items):
        column = points[:, d]
        inside &= (
            (column >= item[0]) & (column < item[1]) if isinstance(item, tuple) else np.isin(column, item)
        )
    return bool(inside.any())


def _meet(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return bool(a[0] < b[1] and b[0] < a[1])
    if isinstance(a, tuple):
        a, b = b, a
    if isinstance(b, tuple):
        return bool(((a >= b[0]) & (a < b[1])).any())
    return bool(np.isin(a, b).any())
