"""Two elements put into one: by atomics, reductions and collectives."""

from __future__ import annotations

from collections.abc import Callable

from megatile.core.expr import Expr
from megatile.ir import nodes as n
from megatile.targets.common.elements import Value, converted, kind
from megatile.targets.common.scope import Peer, Scope

NOTHING = {"sum": "0", "abssum": "0", "max": "-__builtin_inff()", "absmax": "0", "min": "__builtin_inff()"}
_INFIX = {"sum": "+", "add": "+", "prod": "*"}
_CHOSEN = {
    "f": {"max": "fmax_", "min": "fmin_"},
    "d": {"max": "dmax_", "min": "dmin_"},
    "l": {"max": "lmax", "min": "lmin"},
}
_RAW = {"f": "f32", "d": "f64", "l": "int"}


def combined(op: str, of: str, a: str, b: str) -> str:
    """What an operation makes of two numbers of one kind."""
    name = op.removeprefix("abs")
    return f"{a} {_INFIX[name]} {b}" if name in _INFIX else f"{_CHOSEN[of][name]}({a}, {b})"


def changed(op: str, dtype: str, old: str, new: str) -> Value:
    """The element that add, max or min make of two."""
    of = kind(dtype)
    return converted(Value(f"({combined(op, of, old, new)})", _RAW[of]), dtype)


def atomic(scope: Scope, node: n.Atomic, value: Callable[[Expr], Value], at: Peer | None = None) -> None:
    """One element, of another unit perhaps; ``value`` writes the expressions of the statement."""
    storage, pointer, guard = scope.element(node.target, node.index, at)
    new = converted(value(node.value), storage.dtype)
    wanted = None if node.expected is None else converted(value(node.expected), storage.dtype)
    result = scope.vars[node.result].text if node.result is not None else None
    with scope.text.block(f"if ({guard})" if guard else ""):
        scope.gen.change(scope, storage, pointer, node.op, new, wanted, result)
