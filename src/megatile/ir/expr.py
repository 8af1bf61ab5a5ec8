"""Expressions that only Programs have (the others: ``core.expr``): coordinates and elements of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatile.core.expr import Expr, table, walk
from megatile.core.expr.typing import Load as Load

AXES = "xyz"
"""Names of the first coordinates in the text: ``block.y``."""


@dataclass(frozen=True)
class Coord(Expr):
    """One coordinate of this unit (or its ancestor) at a scale, under its launch parent."""

    scale: str
    axis: int
    dtype: str = "int"

    def text(self, outer: int = 0) -> str:
        if self.axis < len(AXES):
            return f"{self.scale}.{AXES[self.axis]}"
        return f'coord("{self.scale}", {self.axis})'


@dataclass(frozen=True)
class Rank(Expr):
    """The number of this unit (or its ancestor) of ``scale`` among all below one unit of ``within``."""

    scale: str
    within: str
    dtype: str = "int"

    def text(self, outer: int = 0) -> str:
        return f'rank("{self.scale}", "{self.within}")'


@dataclass(frozen=True)
class Pick(Expr):
    """``sets[row][index]``: the index, in a tensor, of an element of a unit whose elements are no run."""

    index: Expr
    row: Expr
    sets: tuple[tuple[int, ...], ...]
    dtype: str = "int"

    def children(self) -> tuple[Expr, ...]:
        return self.index, self.row

    def rebuilt(self, *children: Expr) -> Expr:
        index, row = children
        return Pick(index, row, self.sets)

    def head(self) -> tuple[object, ...]:
        return Pick, self.sets

    def text(self, outer: int = 0) -> str:
        return f"pick({self.index.text()}, {self.row.text()}, {list(map(list, self.sets))})"

    @property
    def width(self) -> int:
        """The most elements that a unit has."""
        return max(1, *map(len, self.sets))

    @property
    def flat(self) -> tuple[int, ...]:
        """All sets, each as long as the longest."""
        return tuple(i for one in self.sets for i in (*one, *[0] * (self.width - len(one))))

    def as_table(self) -> Expr:
        """Return the same by one table."""
        return table(self.flat, self.row * self.width + self.index)


def loads(expr: Expr) -> Iterator[Load]:
    """Return every element the expression reads."""
    return (node for node in walk(expr) if isinstance(node, Load))


def has_loads(expr: Expr) -> bool:
    return next(loads(expr), None) is not None
