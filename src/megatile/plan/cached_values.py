"""Expressions followed for many units at once, worked out again only where something they name has changed.

The statements of a loop's body name the same blocks again and again, and most of what a block's place depends
on stays the same in an inner loop, or comes back in every round of an outer one. Equal expressions of a
stream share one function here, and parts of expressions cache the values they had for the integers and units
they name. Values are shared, so arrays among them are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from megatile.core.expr import Const, Expr, Function, Select, Symbol
from megatile.plan.cohort import uniform

Env = Any
MAX_CACHED_NUMBERS = 16384
"""Numbers that one part of an expression may cache."""


class CachedPart:
    """A part of expressions: how it is worked out, what it names, and the function that caches it."""

    __slots__ = ("cached", "names", "plain", "used")

    def __init__(self, plain: Function, names: frozenset[str]):
        self.plain, self.names = plain, names
        self.cached: Function | None = None
        self.used = False


class CachedValues:
    """Functions of the expressions of one stream that ``units`` units follow."""

    def __init__(self, units: int):
        self.most = max(1, MAX_CACHED_NUMBERS // max(1, units))
        self._parts: dict[Any, CachedPart] = {}
        self._results: list[dict[Any, Any]] = []

    def forget(self) -> None:
        """Drop all values: those who come next name other objects."""
        for results in self._results:
            results.clear()

    def function(self, expr: Expr) -> Function:
        """Return the expression's value in an environment."""
        return self._cached(self._part(expr))

    def even(self, expr: Expr) -> Function:
        """Likewise, but an int where all units agree."""
        return self._cached(self._even(expr))

    def together(self, name: str, exprs: Iterable[Expr], rule: Callable[[list[Any]], Any]) -> Function:
        """Return what ``rule`` makes of several expressions' even values; equal ``name`` means equal rule."""
        parts = [self._even(e) for e in exprs]
        key = (name, *parts)
        if key not in self._parts:
            names = frozenset().union(*(p.names for p in parts))
            inner = [self._cached(p) for p in parts]
            self._parts[key] = CachedPart(lambda env: rule([f(env) for f in inner]), names)
        return self._cached(self._parts[key])

    def _even(self, expr: Expr) -> CachedPart:
        whole = self._part(expr)
        if isinstance(expr, Const):
            return whole
        key = ("even", whole)
        if key not in self._parts:
            inner = self._cached(whole)
            self._parts[key] = CachedPart(lambda env: uniform(inner(env)), whole.names)
        return self._parts[key]

    def _cached(self, part: CachedPart) -> Function:
        if part.cached is None:
            results: dict[Any, tuple[Any, Any]] = {}
            self._results.append(results)
            part.cached = cached_by_identity(part.plain, tuple(sorted(part.names)), self.most, results)
        return part.cached

    def _inner(self, part: CachedPart, whole: frozenset[str]) -> Function:
        """A part that names as much as the whole is worth caching only if others use it too."""
        if part.cached is not None or part.used or part.names != whole:
            return self._cached(part)
        part.used = True
        return part.plain

    def _part(self, expr: Expr) -> CachedPart:
        parts = [self._part(child) for child in expr.children()]
        key = (expr.head(), *parts)
        found = self._parts.get(key)
        if found is None:
            own = frozenset((expr.name,)) if isinstance(expr, Symbol) else frozenset()
            names = own.union(*(p.names for p in parts))
            keep = isinstance(expr, Select)  # the side not taken is not worked out: its parts cache
            inner = [self._cached(p) if keep else self._inner(p, names) for p in parts]
            found = self._parts[key] = CachedPart(expr.function(*inner), names)
            if isinstance(expr, Symbol):
                found.cached = found.plain
        return found


def cached_by_identity(
    function: Function, names: tuple[str, ...], most: int, results: dict[Any, tuple[Any, Any]]
) -> Function:
    """Return ``function`` with its latest ``most`` values in ``results``, by the objects that the names
    mean."""
    if not names:
        value = function({})
        return lambda env: value
    one, lookup = len(names) == 1, itemgetter(*names)

    def known(env: Env) -> Any:
        named = lookup(env)
        key = id(named) if one else tuple(map(id, named))
        found = results.get(key)
        if found is None:
            result = function(env)
            if result.__class__ is np.ndarray:
                result.flags.writeable = False
            if len(results) >= most:
                results.clear()
            # What is named is kept as well: an object's id is its own as long as it lives.
            found = results[key] = (result, named)
        return found[0]

    return known
