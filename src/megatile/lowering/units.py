"""Whole numbers of a Program as expressions of a Plan: coordinates become arithmetic on ``unit``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from megatile.core.cached import cached
from megatile.core.expr import (
    OPERATORS,
    ZERO,
    Applied,
    Binary,
    Const,
    Expr,
    Symbol,
    Table,
    binary as make_binary,
    bounds,
    ceil_div,
    expr,
    logical_not,
    maximum,
    minimum,
    ne,
    rebuild,
    select,
    simplify,
    table,
)
from megatile.core.expr.tree import folded
from megatile.ir.expr import Coord, Rank
from megatile.ir.launch import Launch

Ranges = dict[str, tuple[int, int]]
WHOLE = ("int", "bool", "i8", "u8", "i16", "i32", "i64", "u32")


class NotStatic(Exception):
    """An expression that depends on data or on an iteration of elementwise code."""


_SPELT_OUT: dict[str, Callable[..., Expr]] = {
    "and": lambda a, b: ne(a, 0) & ne(b, 0),
    "or": lambda a, b: ne(a, 0) | ne(b, 0),
    "not": logical_not,
    "ceildiv": ceil_div,
    "neg": lambda a: -a,
    "abs": lambda a: maximum(a, -a),
    "select": select,
    "cast": lambda a: a,
}


@dataclass(frozen=True)
class Place:
    """Where code runs: the index of this unit (or its ancestor) at every scale of the launch, outermost
    first; scales further in than ``path`` are not divided here."""

    launch: Launch
    path: tuple[Expr, ...]

    @property
    def depth(self) -> int:
        return len(self.path)

    def rank(self, low: int, high: int) -> Expr:
        """Return the number of the unit at depth ``high`` among those below its ancestor at depth ``low``."""
        number: Expr = ZERO
        for at in range(low, high):
            index = self.path[at] if at < self.depth else ZERO
            number = index if number is ZERO else number * self.launch.scales[at].count + index
        return number

    def coord(self, node: Coord) -> Expr:
        at = self.launch.depth(node.scale) - 1
        extents = self.launch.extents(node.scale)
        whole = self.path[at] // math.prod(extents[: node.axis])
        return whole if node.axis == len(extents) - 1 else whole % extents[node.axis]

    def whole(self, node: Expr, names: Mapping[str, Expr]) -> Expr:
        """Return a whole-number expression of the Program as one of the Plan; ``names`` are its variables."""
        if isinstance(node, Const):
            if isinstance(node.value, float):
                raise NotStatic
            return node if node.dtype == "int" else expr(node.value)
        if isinstance(node, Symbol):
            if node.name not in names:
                raise NotStatic
            return names[node.name]
        if isinstance(node, Coord):
            return self.coord(node)
        if isinstance(node, Rank):
            return self.rank(self.launch.depth(node.within), self.launch.depth(node.scale))
        if isinstance(node, Table):
            return table(node.values, self.whole(node.index, names))
        if not isinstance(node, Applied) or node.dtype not in WHOLE:
            raise NotStatic
        args = [self.whole(a, names) for a in node.args]
        if node.operator in _SPELT_OUT:
            return _SPELT_OUT[node.operator](*args)
        if len(args) != 2 or OPERATORS[node.operator].rule is None:
            raise NotStatic
        return make_binary(node.operator, *args)


def split_number(number: Expr, counts: list[int]) -> list[Expr]:
    """Return the nested indices of a rank, outermost first."""
    found: list[Expr] = []
    below = 1
    for at, count in reversed(list(enumerate(counts))):
        index = number // below
        found.append(index if at == 0 else index % count if count > 1 else ZERO)
        below *= count
    return [ZERO if counts[at] == 1 else e for at, e in enumerate(reversed(found))]


def at_least(node: Expr, low: int, ranges: Ranges) -> bool:
    """Return whether an expression is surely at least ``low``."""
    found = bounds(simplify(node), ranges)
    return found is not None and found[0] >= low


def tidy(node: Expr, ranges: Ranges) -> Expr:
    """Return the same value in fewer words, from what is known of the symbols' ranges."""
    return _tidy(node, tuple(ranges.items()))


@cached(most=4096)
def _tidy(node: Expr, known: tuple[tuple[str, tuple[int, int]], ...]) -> Expr:
    ranges = dict(known)

    def shorter(part: Expr) -> Expr:
        if not isinstance(part, Binary) or part.operator not in ("%", "//", "min", "max"):
            return part
        if part.operator in ("min", "max"):
            gap = bounds(simplify(part.left - part.right), ranges)
            if gap is None or gap[0] < 0 < gap[1]:
                return part
            return part.left if (gap[1] <= 0) == (part.operator == "min") else part.right
        within = bounds(part.left, ranges)
        if (
            isinstance(part.right, Const)
            and within is not None
            and 0 <= within[0] <= within[1] < part.right.value
        ):
            return part.left if part.operator == "%" else ZERO
        return part

    short = simplify(node)
    found = rebuild(short, lambda part: shorter(folded(part)))
    return short if found == short else simplify(found)


def clamp(node: Expr, low: Expr | int, high: Expr | int) -> Expr:
    return minimum(maximum(node, low), high)
