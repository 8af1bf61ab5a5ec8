"""Expressions followed for many units at once, worked out again only where something they name has changed.

The statements of a loop's body name the same blocks again and again, and most of what a block's place depends
on stays the same in an inner loop, or comes back in every round of an outer one. Equal expressions of a
stream share one function here, and parts of expressions remember the values they had for the integers and
units they name. Values are shared, so arrays among them are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from megatile.core.expr import Const, Expr, Function, Select, Symbol
from megatile.plan.cohort import uniform

Env = Any
# Numbers that one part of an expression may keep.
KEPT = 16384


class Remembered:
    """A part of expressions: how it is worked out, what it names, and the function that remembers it."""

    __slots__ = ("kept", "names", "plain", "used")

    def __init__(self, plain: Function, names: frozenset[str]):
        self.plain, self.names = plain, names
        self.kept: Function | None = None
        self.used = False


class Memo:
    """Functions of the expressions of one stream that ``units`` units follow."""

    def __init__(self, units: int):
        self.most = max(1, KEPT // max(1, units))
        self._parts: dict[Any, Remembered] = {}

    def function(self, expr: Expr) -> Function:
        """The expression's value in an environment."""
        return self._remembered(self._part(expr))

    def even(self, expr: Expr) -> Function:
        """Likewise, but an int where all units agree."""
        return self._remembered(self._even(expr))

    def together(self, name: str, exprs: Iterable[Expr], rule: Callable[[list[Any]], Any]) -> Function:
        """What ``rule`` makes of several expressions' even values; equal ``name`` means equal rule."""
        parts = [self._even(e) for e in exprs]
        key = (name, *parts)
        if key not in self._parts:
            names = frozenset().union(*(p.names for p in parts))
            inner = [self._remembered(p) for p in parts]
            self._parts[key] = Remembered(lambda env: rule([f(env) for f in inner]), names)
        return self._remembered(self._parts[key])

    def _even(self, expr: Expr) -> Remembered:
        whole = self._part(expr)
        if isinstance(expr, Const):
            return whole
        key = ("even", whole)
        if key not in self._parts:
            inner = self._remembered(whole)
            self._parts[key] = Remembered(lambda env: uniform(inner(env)), whole.names)
        return self._parts[key]

    def _remembered(self, part: Remembered) -> Function:
        if part.kept is None:
            part.kept = remembering(part.plain, tuple(sorted(part.names)), self.most)
        return part.kept

    def _inner(self, part: Remembered, whole: frozenset[str]) -> Function:
        """A part that names as much as the whole is worth remembering only if others use it too."""
        if part.kept is not None or part.used or part.names != whole:
            return self._remembered(part)
        part.used = True
        return part.plain

    def _part(self, expr: Expr) -> Remembered:
        parts = [self._part(child) for child in expr.children()]
        key = (expr.head(), *parts)
        found = self._parts.get(key)
        if found is None:
            own = frozenset((expr.name,)) if isinstance(expr, Symbol) else frozenset()
            names = own.union(*(p.names for p in parts))
            keep = isinstance(expr, Select)  # the side not taken is not worked out: its parts remember
            inner = [self._remembered(p) if keep else self._inner(p, names) for p in parts]
            found = self._parts[key] = Remembered(expr.function(*inner), names)
            if isinstance(expr, Symbol):
                found.kept = found.plain
        return found


def remembering(function: Function, names: tuple[str, ...], most: int) -> Function:
    """``function`` with its latest ``most`` values, by the objects that the names mean."""
    kept: dict[Any, tuple[Any, Any]] = {}
    if not names:
        value = function({})
        return lambda env: value
    one, lookup = len(names) == 1, itemgetter(*names)

    def remembered(env: Env) -> Any:
        named = lookup(env)
        key = id(named) if one else tuple(map(id, named))
        found = kept.get(key)
        if found is None:
            result = function(env)
            if result.__class__ is np.ndarray:
                result.flags.writeable = False
            if len(kept) >= most:
                kept.clear()
            # What is named is kept as well: an object's id is its own as long as it lives.
            found = kept[key] = (result, named)
        return found[0]

    return remembered
