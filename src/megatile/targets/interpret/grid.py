"""Boxes by the cells of a grid they lie in, so that those near a box are found without looking at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

MANY = 32
"""A box that lies in more cells than this is always a candidate."""

Box = Sequence[tuple[int, int]]


class Grid:
    """Numbers of boxes; ``cell`` is the extent of a cell in each dimension."""

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
        """Numbers of boxes that may share an element with ``box``; None if it lies in too many cells."""
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
            if count > MANY:
                return None
            ranges.append(range(first, last + 1))
        return list(product(*ranges))


def typical(boxes: Sequence[Box]) -> tuple[int, ...]:
    """A cell for boxes like these: the middle one of their extents in each dimension."""
    middle = len(boxes) // 2
    columns = zip(*([high - low for low, high in box] for box in boxes), strict=True)
    return tuple(max(sorted(column)[middle], 1) for column in columns)
