"""Python functions that mean something else for symbols: ``int``, ``range``, ``min``, ``max``, ``abs`` ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megatile.core.expr import Expr, bounds, maximum, minimum, ne, symbols
from megatile.language.kernel.symbols import KernelError, Sym, SymRange, to_expr, wrap
from megatile.language.kernel.values import Pointer, TileRef


def given(value: Any) -> Any:
    return value


def hashable(function: Any) -> bool:
    try:
        hash(function)
    except (TypeError, KernelError):
        return False
    return True


def symbolic_value(value: Any) -> bool:
    return isinstance(value, (Sym, Pointer, TileRef))


def is_truth(node: Expr) -> bool:
    limits = bounds(node, {})
    return limits is not None and limits[0] >= 0 and limits[1] <= 1


def depends_only_on(node: Expr, known: dict[str, tuple[int, int]]) -> bool:
    """Names bound inside a branch are no longer there after it."""
    return symbols(node) <= set(known)


def _int(reader: Any, value: Any) -> Any:
    return value


def _range(reader: Any, *arguments: Any) -> Any:
    start, stop, step = (0, arguments[0], 1) if len(arguments) == 1 else (*arguments, 1)[:3]
    return SymRange(start, stop, step, reader)


def _extreme(rule: Callable[[Any, Any], Expr], word: str) -> Callable[..., Any]:
    def function(reader: Any, *arguments: Any) -> Any:
        if any(isinstance(a, TileRef) for a in arguments):
            raise KernelError(f"use tl.{word} for tiles", place=reader.here)
        total = to_expr(arguments[0])
        for other in arguments[1:]:
            total = rule(total, to_expr(other))
        return wrap(total, reader)

    return function


def _abs(reader: Any, value: Any) -> Any:
    return abs(value) if not isinstance(value, Sym) else wrap(maximum(value.expr, -value.expr), reader)


BUILTINS: dict[Any, Callable[..., Any]] = {
    int: _int,
    range: _range,
    min: _extreme(minimum, "minimum"),
    max: _extreme(maximum, "maximum"),
    abs: _abs,
    bool: lambda reader, value: wrap(ne(value.expr, 0), reader) if isinstance(value, Sym) else bool(value),
    isinstance: lambda reader, value, kind: isinstance(0 if isinstance(value, Sym) else value, kind),
}
