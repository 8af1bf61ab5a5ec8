"""Expressions of a stream for all its units, while loops change the integers of their frame."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from megatile.core.expr import Expr, Symbol
from megatile.sim.table import Meaning


class Values:
    """Values for units that have the same integers in their frame but for the first, which is an array; one
    is found again when an integer changes that it needs."""

    def __init__(self, meanings: list[Meaning], frame: list[Any]) -> None:
        self.meanings, self.frame = meanings, frame
        self._changed, self._now = [0] * len(frame), 0
        self._numbers: dict[Any, int] = {}
        """Nodes that mean the same are one, by place or by head and children."""
        self._nodes: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = []
        """Of every node: a function of its children's values (or a place), these, and the places needed."""
        self._known: list[tuple[int, Any]] = []
        self._of: dict[int, int] = {}
        self._ranges: dict[int, tuple[Any, int, int]] = {}

    def put(self, place: int, value: Any) -> None:
        self._now += 1
        self.frame[place], self._changed[place] = value, self._now

    def value(self, x: int) -> Any:
        """The value of an expression: a number, or an array with that of every unit."""
        if x not in self._of:
            self._of[x] = self._node(self.meanings[x].node, self.meanings[x].places)
        return self._value(self._of[x])

    def between(self, value: Any) -> tuple[int, int]:
        """The smallest and the largest of an array."""
        known = self._ranges.get(id(value))
        if known is None or known[0] is not value:
            if len(self._ranges) > 256:
                self._ranges.clear()
            known = self._ranges[id(value)] = value, int(value.min()), int(value.max())
        return known[1:]

    def _node(self, node: Expr, places: dict[str, int]) -> int:
        children = tuple(self._node(child, places) for child in node.children())
        place = places[node.name] if isinstance(node, Symbol) else None
        key = place if place is not None else (node.head(), children)
        if key not in self._numbers:
            self._numbers[key] = len(self._nodes)
            needed = {place} if place is not None else {p for c in children for p in self._nodes[c][2]}
            function = place if place is not None else node.function(*map(itemgetter, range(len(children))))
            self._nodes.append((function, children, tuple(needed)))
            self._known.append((-1, None))
        return self._numbers[key]

    def _value(self, node: int) -> Any:
        function, children, needed = self._nodes[node]
        latest, changed = 0, self._changed
        for place in needed:
            if changed[place] > latest:
                latest = changed[place]
        at, found = self._known[node]
        if at != latest:
            if children:
                found = function([self._value(child) for child in children])
            else:
                found = self.frame[function] if needed else function(())
            self._known[node] = latest, found
        return found
