"""Expressions as Python functions of a unit: integers for indices, arrays inside T.Parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megatile.core.elementwise import DIRECT, operation as core_operation
from megatile.core.expr import WEAK, Applied, Const, Expr, Symbol, Table, constant, walk
from megatile.core.placement import coordinates
from megatile.ir.expr import Coord, Load, Pick, Rank, has_loads
from megatile.ir.launch import Launch
from megatile.targets.interpret.errors import RunError

Evaluate = Callable[[Any], Any]
"""Of a context: something with ``path`` and ``vars`` (a unit, or the iterations of a parallel loop)."""


def _whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Division of whole numbers, with the user's word for a zero divisor."""

    def checked(a: Any, b: Any) -> Any:
        divisor = np.asarray(b)
        if divisor.dtype.kind in "iub" and not np.all(divisor):
            raise RunError(
                "division by zero",
                advice="put it under an 'if', or divide by T.max(n, 1): T.if_then_else computes both sides",
            )
        return function(a, b)

    return checked


def operation(expr: Any) -> Callable[[list[Any]], Any]:
    """Return what an operator does with evaluated arguments; divisions are checked."""
    return core_operation(expr, _whole)


def divides(expr: Expr) -> bool:
    """Return whether an expression divides whole numbers by what may be zero."""
    return any(
        isinstance(part, Applied)
        and part.operator in ("//", "%", "ceildiv")
        and constant(part.args[1]) is None
        for part in walk(expr)
    )


class Compiler:
    """Turns expressions into functions, once per node; ``load`` reads an element or the elements of all
    iterations."""

    def __init__(self, launch: Launch, load: Callable[[Load], Evaluate]):
        self.launch = launch
        self.load = load
        self.cache: dict[int, Evaluate] = {}
        self.kept: list[Expr] = []

    def __call__(self, expr: Expr) -> Evaluate:
        found = self.cache.get(id(expr))
        if found is None:
            found = self.cache[id(expr)] = _COMPILERS[type(expr)](self, expr)
            self.kept.append(expr)  # ids stay unique while the node lives
        return found

    def const(self, expr: Const) -> Evaluate:
        value = expr.value
        return lambda context: value

    def var(self, expr: Symbol) -> Evaluate:
        name = expr.name
        return lambda context: context.vars[name]

    def coord(self, expr: Coord) -> Evaluate:
        at, extents, axis = self.launch.depth(expr.scale) - 1, self.launch.extents(expr.scale), expr.axis

        def coord(context: Any) -> Any:
            number = context.path[at]
            if hasattr(number, "coords"):  # of all units at once
                return number.coords[axis]
            return number if len(extents) == 1 else coordinates(number, extents)[axis]

        return coord

    def rank(self, expr: Rank) -> Evaluate:
        low, high = self.launch.depth(expr.within), self.launch.depth(expr.scale)
        counts = [s.count for s in self.launch.scales[low:high]]
        return lambda context: flatten(context.path[low:high], counts)

    def table(self, expr: Table) -> Evaluate:
        index, values = self(expr.index), np.array(expr.values, np.int64)

        def element(context: Any) -> Any:
            found = values.take(index(context), mode="clip")
            return int(found) if found.ndim == 0 else found

        return element

    def apply(self, expr: Any) -> Evaluate:
        arguments = [self(a) for a in expr.args]
        if expr.operator == "select" and any(map(has_loads, expr.args[1:])):
            return self._chosen(expr, arguments)
        if expr.operator in ("and", "or") and (has_loads(expr.args[1]) or divides(expr.args[1])):
            return self._both(expr.operator == "and", arguments)
        if len(arguments) == 2 and expr.operator in ("+", "*", "-") and expr.dtype == "int":
            left, right = arguments
            function = DIRECT[expr.operator]
            return lambda context: function(left(context), right(context))
        compute = operation(expr)
        return lambda context: compute([a(context) for a in arguments])

    def _chosen(self, expr: Any, arguments: list[Evaluate]) -> Evaluate:
        """Return a choice whose sides read elements: each side only where it is chosen, so that a condition
        can guard an index."""
        condition, then, orelse = arguments
        compute = operation(expr)

        def choose(context: Any) -> Any:
            chosen = condition(context)
            if np.size(chosen) == 1:
                value = (then if np.all(chosen) else orelse)(context)
                return compute([True, value, value]) if expr.dtype not in WEAK else value
            return compute([np.broadcast_to(chosen, context.shape), *context.divided(chosen, then, orelse)])

        return choose

    def _both(self, wanted: bool, arguments: list[Evaluate]) -> Evaluate:
        """Return ``and``/``or`` whose second side reads elements or divides: only where the first does not
        decide."""
        first, second = arguments

        def both(context: Any) -> Any:
            left = first(context)
            if np.size(left) == 1:
                return second(context) if bool(np.all(left)) == wanted else not wanted
            undecided = np.asarray(left, bool) == wanted
            right, _ = context.divided(undecided, second, lambda _: not wanted)
            return np.where(np.broadcast_to(undecided, context.shape), right, not wanted).astype(bool)

        return both


_COMPILERS: dict[type, Callable[[Compiler, Any], Evaluate]] = {
    Const: Compiler.const,
    Symbol: Compiler.var,
    Coord: Compiler.coord,
    Rank: Compiler.rank,
    Table: Compiler.table,
    Pick: lambda compiler, expr: compiler(expr.as_table()),
    **dict.fromkeys(Applied.__subclasses__(), Compiler.apply),
    Load: lambda compiler, expr: compiler.load(expr),
}


def flatten(indices: tuple[int, ...], counts: list[int]) -> int:
    """Return the rank of nested indices, the outermost first."""
    rank = 0
    for index, extent in zip(indices, counts, strict=True):
        rank = rank * extent + index
    return rank


def unflatten(rank: Any, counts: list[int]) -> tuple[Any, ...]:
    """Return the nested indices of a rank (or of an array of ranks): the inverse of ``flatten``."""
    result = []
    for extent in reversed(counts):
        rank, index = divmod(rank, extent)
        result.append(index)
    return tuple(reversed(result))
