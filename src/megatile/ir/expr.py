"""Expressions that only Programs have (the others: ``core.expr``): coordinates and elements of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatile.core.expr import Expr, walk
from megatile.core.expr.typing import Load as Load


@dataclass(frozen=True)
class Coord(Expr):
    """One coordinate of this unit (or its ancestor) at a scale, under its launch parent."""

    scale: str
    axis: int
    dtype: str = "int"

    def text(self, outer: int = 0) -> str:
        return f'coord("{self.scale}", {self.axis})'


@dataclass(frozen=True)
class Rank(Expr):
    """The number of this unit (or its ancestor) of ``scale`` among all below one unit of ``within``."""

    scale: str
    within: str
    dtype: str = "int"

    def text(self, outer: int = 0) -> str:
        return f'rank("{self.scale}", "{self.within}")'


def loads(expr: Expr) -> Iterator[Load]:
    """Every element the expression reads."""
    return (node for node in walk(expr) if isinstance(node, Load))


def has_loads(expr: Expr) -> bool:
    return next(loads(expr), None) is not None
