"""Expressions of many units at once, worked out again only where something they name has changed.

A loop body names the same block in several statements, and most of what a block's place depends on stays the
same in an inner loop. Equal expressions share one function here, and every part of an expression that names
less than the whole remembers its last value (``plan/memo.py`` remembers many, which costs more per lookup).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatile.core.expr import Const, Expr, Symbol, symbols

Env = Mapping[str, Any]
Function = Callable[[Env], Any]


class Memo:
    """Functions of expressions for one cohort, whose units never change."""

    def __init__(self) -> None:
        self._functions: dict[Expr, Function] = {}

    def function(self, expr: Expr) -> Function:
        """A function of the environment that remembers its last value."""
        known = self._functions.get(expr)
        if known is None:
            known = self._functions[expr] = remembering(self._build(expr), tuple(sorted(symbols(expr))))
        return known

    def _part(self, expr: Expr, whole: Expr) -> Function:
        """Of a part that names as much as the whole, remembering would gain nothing."""
        if isinstance(expr, (Const, Symbol)):
            return expr.compile()
        return self._build(expr) if symbols(expr) == symbols(whole) else self.function(expr)

    def _build(self, expr: Expr) -> Function:
        return expr.function(*(self._part(child, expr) for child in expr.children()))


def remembering(function: Function, names: tuple[str, ...]) -> Function:
    """``function``, called again only if one of the names means another object than last time."""
    changing = tuple(name for name in names if name != "unit")
    last: list[Any] = [None]
    if not changing:

        def constant(env: Env) -> Any:
            if last[0] is None:
                last[0] = function(env)
            return last[0]

        return constant
    seen: list[Any] = [None] * len(changing)

    def value(env: Env) -> Any:
        for place, name in enumerate(changing):
            if env[name] is not seen[place]:
                break
        else:
            return last[0]
        seen[:] = [env[name] for name in changing]
        last[0] = function(env)
        return last[0]

    return value
