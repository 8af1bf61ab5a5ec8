"""How the parts of a plan declare their fields: text, reader, names, regions and checks follow from that.

A field says what it holds (``kind``, a key of the tables in ``text.py`` and ``parse.py``) and where it is
written: ``target <- word(argument, ..., keyword=value)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, field, fields
from operator import attrgetter
from typing import Any, NamedTuple

TARGET, ARGUMENT, KEYWORD, HIDDEN = "target", "argument", "keyword", ""
ALWAYS = object()  # as ``omit``: written even where it is the default


class FieldSpec(NamedTuple):
    """One field. ``omit`` is the value at which a keyword is not written (MISSING: it always is); targets of
    equal ``order`` are alternatives; the second one adds ``field=True``.

    ``role`` is what a command does with it: ``reads`` or ``writes`` regions, ``binds`` a tile or
    ``counts`` an integer, refers to a declared ``channel``, ``flag`` or ``group``. Expressions that
    ``decide`` say where control and messages go, not which elements they touch.
    """

    name: str
    kind: str
    shown: str
    omit: Any
    order: int
    role: str
    decides: bool


def part(
    kind: str,
    shown: str = KEYWORD,
    default: Any = MISSING,
    *,
    omit: Any = MISSING,
    order: int = 0,
    role: str = "",
    decides: bool = False,
) -> Any:
    """Return a field of a part of a plan."""
    kept = default if omit is MISSING else omit
    metadata = {"part": FieldSpec("", kind, shown, kept, order, role, decides)}
    return field(default=default, metadata=metadata)


_PARTS: dict[type, tuple[FieldSpec, ...]] = {}


def parts(kind: type) -> tuple[FieldSpec, ...]:
    """Return the fields of a class as they are declared, in the order in which they are written."""
    known = _PARTS.get(kind)
    if known is None:
        found = [f.metadata["part"]._replace(name=f.name) for f in fields(kind) if "part" in f.metadata]
        known = _PARTS[kind] = tuple(sorted(found, key=lambda p: p.order))
    return known


def _getter(kind: type, roles: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives the values of the fields with these roles, without those that are None."""
    found = [p for role in roles for p in parts(kind) if p.role == role]
    gets = [(p.name, p.kind == "regions") for p in found]
    if not gets:
        return lambda _: ()
    if len(gets) == 1 and gets[0][1]:
        return attrgetter(gets[0][0])
    if [many for _, many in gets] == [True, False]:  # what a command reads and writes is asked for most often
        several, one = (attrgetter(name) for name, _ in gets)
        return lambda thing: several(thing) if one(thing) is None else (*several(thing), one(thing))

    def values(thing: Any) -> tuple[Any, ...]:
        each: list[Any] = []
        for name, many in gets:
            value = getattr(thing, name)
            if many:
                each += value
            elif value is not None:
                each.append(value)
        return tuple(each)

    return values


def having(*roles: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that gives what a statement has in these roles."""
    getters: dict[type, Callable[[Any], tuple[Any, ...]]] = {}

    def get(thing: Any) -> tuple[Any, ...]:
        kind = type(thing)
        if kind not in getters:
            getters[kind] = _getter(kind, roles)
        return getters[kind](thing)

    return get
