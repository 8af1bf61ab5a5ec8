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

from megatile.plan.cohort import uniform
from megatile.plan.expr import Binary, Const, Expr, Select, Symbol, Table, tabulated
from megatile.plan.operators import OPERATORS

Env = Any
Function = Callable[[Env], Any]
# Numbers that one part of an expression may keep.
KEPT = 16384


class Part:
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
        self._parts: dict[Any, Part] = {}

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
            self._parts[key] = Part(lambda env: rule([f(env) for f in inner]), names)
        return self._remembered(self._parts[key])

    def _even(self, expr: Expr) -> Part:
        whole = self._part(expr)
        if isinstance(expr, Const):
            return whole
        key = ("even", whole)
        if key not in self._parts:
            inner = self._remembered(whole)
            self._parts[key] = Part(lambda env: uniform(inner(env)), whole.names)
        return self._parts[key]

    def _remembered(self, part: Part) -> Function:
        if part.kept is None:
            part.kept = remembering(part.plain, tuple(sorted(part.names)), self.most)
        return part.kept

    def _inner(self, part: Part, whole: frozenset[str]) -> Function:
        """A part that names as much as the whole is worth remembering only if others use it too."""
        if part.kept is not None or part.used or part.names != whole:
            return self._remembered(part)
        part.used = True
        return part.plain

    def _part(self, expr: Expr) -> Part:
        if isinstance(expr, Const):
            return self._made(("const", expr.value), [], lambda: expr.compile())
        if isinstance(expr, Symbol):
            found = self._made(("symbol", expr.name), [], lambda: expr.compile())
            found.names = frozenset((expr.name,))
            found.kept = found.plain
            return found
        if isinstance(expr, Binary):
            left, right = self._part(expr.left), self._part(expr.right)
            names = left.names | right.names
            rule = OPERATORS[expr.operator].rule
            return self._made(
                (expr.operator, left, right),
                (left, right),
                lambda: _applied(rule, self._inner(left, names), self._inner(right, names)),
            )
        if isinstance(expr, Select):
            three = [self._part(e) for e in (expr.condition, expr.then, expr.otherwise)]
            return self._made(("select", *three), three, lambda: chosen(*map(self._remembered, three)))
        assert isinstance(expr, Table)
        index = self._part(expr.index)
        return self._made(
            ("table", expr.values, index),
            (index,),
            lambda: tabulated(expr.values, self._inner(index, index.names)),
        )

    def _made(self, key: Any, parts: Iterable[Part], make: Callable[[], Function]) -> Part:
        found = self._parts.get(key)
        if found is None:
            names = frozenset().union(*(p.names for p in parts))
            found = self._parts[key] = Part(make(), names)
        return found


def _applied(rule: Callable[[Any, Any], Any], left: Function, right: Function) -> Function:
    return lambda env: rule(left(env), right(env))


def chosen(condition: Function, then: Function, otherwise: Function) -> Function:
    """``then`` where the condition holds, else ``otherwise``."""

    def value(env: Env) -> Any:
        chosen = condition(env)
        if isinstance(chosen, np.ndarray):
            return np.where(chosen != 0, then(env), otherwise(env))
        return then(env) if chosen else otherwise(env)

    return value


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
