"""Check the fields of a plan that was read from a file against their declared types.

Reading a file makes objects of whatever stands in it; this finds the one number that is a text before an
evaluator does.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from megatile.core.cached import cached
from megatile.core.expr import walk
from megatile.plan import model, statements
from megatile.plan.model import Expr, Plan, PlanError

_NAMES = {"index", "chosen", "name"}
_MAX_INTEGER = 1 << 62
"""Largest absolute value of an integer in a Plan: sums of two stay in 64 bits."""


def check_fields(plan: Plan) -> None:
    """Raise a ``PlanError`` that names the first part of the wrong type."""
    try:
        _check(plan, Plan, "plan")
    except RecursionError:
        raise PlanError("the plan is nested too deeply") from None


@cached()
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, vars(model) | vars(statements) | {"Expr": Expr})


def _check(value: Any, wanted: Any, path: str) -> None:
    if not _is(value, wanted):
        raise PlanError(f"{path} is {_shown(value)}, not {_words(wanted)}")
    if isinstance(value, bool) or not (isinstance(value, (int, tuple)) or is_dataclass(value)):
        return
    if isinstance(value, int):
        if abs(value) >= _MAX_INTEGER:
            raise PlanError(f"{path} is too large a number")
    elif isinstance(value, tuple):
        inner = get_args(wanted)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        for kind_of_item, item in zip(kinds, value, strict=True):
            _check(item, kind_of_item, path)
    elif isinstance(value, Expr):
        for node in walk(value):
            for number in (getattr(node, "value", 0), *getattr(node, "values", ())):
                _check(number, int, path)
    else:
        kind: Any = type(value)
        hints = _hints(kind)
        for entry in fields(value):
            item = getattr(value, entry.name)
            _check(item, hints[entry.name], f"{entry.name} of {_title(value)}")
            named = entry.name in _NAMES and not isinstance(value, Plan) and item is not None
            if named and not item.isidentifier():
                raise PlanError(f"{entry.name} of {_title(value)} is {_shown(item)}, not a name")
        if isinstance(value, statements.Region) and len(value.start) != len(value.shape):
            raise PlanError(
                f"the region of '{value.tile}' has {len(value.start)} starts and {len(value.shape)} extents"
            )


def _is(value: Any, wanted: Any) -> bool:
    """Return whether a value fits a declared type; the items of tuples are looked at one by one later."""
    if wanted is Any:
        return True
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        return any(_is(value, one) for one in get_args(wanted))
    if origin is tuple:
        inner = get_args(wanted)
        return isinstance(value, tuple) and (inner[-1] is Ellipsis or len(value) == len(inner))
    if wanted in (int, float):
        return isinstance(value, int if wanted is int else (int, float)) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _title(value: Any) -> str:
    name = getattr(value, "name", None)
    kind = type(value).__name__.lower()
    return f"{kind} '{name}'" if isinstance(name, str) else kind


def _shown(value: Any) -> str:
    text = repr(value) if not is_dataclass(value) or isinstance(value, Expr) else _title(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _words(wanted: Any) -> str:
    if get_origin(wanted) in (Union, UnionType):
        parts = dict.fromkeys(_words(one) for one in get_args(wanted))
        return " or ".join(parts) if len(parts) <= 4 else "a statement"
    known = {int: "a number", str: "a text", float: "a number", bool: "true or false", type(None): "nothing"}
    if get_origin(wanted) is tuple:
        inner = get_args(wanted)
        return "a list" if inner[-1] is Ellipsis else f"a list of {len(inner)}"
    return known.get(wanted, f"{wanted.__name__.lower()}")
