"""Run one plan in several groups of units at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from megatile.core.expr import Expr, constant, select, substitute, table, unit
from megatile.plan import model as pm

PEERS = {(pm.Channel, "source"), (pm.Send, "to"), (pm.Signal, "to"), (pm.Region, "at")}
"""Fields that name another unit."""


def side_by_side(plan: pm.Plan, places: Sequence[Sequence[int]]) -> pm.Plan:
    """Return a plan in which every group of units does what ``plan`` says.

    ``places[g][u]`` is the hardware unit of unit ``u`` of group ``g``, which becomes unit ``g * plan.units +
    u``. Every unit owns tiles of its own, as in collective plans.
    """
    size, count = plan.units, len(places)
    if count == 1:
        return replace(plan, place=table(list(places[0]), unit))
    moved = _Moved(size)
    streams = tuple(
        replace(
            moved(stream),
            units=pm.runs([g * size + u for g in range(count) for u in stream.unit_numbers()]),
        )
        for stream in plan.streams
    )
    return replace(
        plan,
        name=f"{plan.name} in {count} columns",
        grid=(size * count,),
        place=table([place for group in places for place in group], unit),
        channels=tuple(map(moved, plan.channels)),
        groups=tuple(replace(g, key=_key(moved(g).key, size, count)) for g in plan.groups),
        streams=streams,
    )


def _key(key: Expr, size: int, count: int) -> Expr:
    """Keep the groups of different columns apart; -1 takes no part."""
    own = key * count + unit // size
    return own if (constant(key) or 0) >= 0 and constant(key) is not None else select(key < 0, -1, own)


class _Moved:
    """Writes a part of a plan anew, for units that are ``size`` to a group."""

    def __init__(self, size: int) -> None:
        self.number, self.first = unit % size, unit // size * size

    def __call__(self, part: Any) -> Any:
        if isinstance(part, Expr):
            return substitute(part, {"unit": self.number})
        if isinstance(part, tuple):
            return tuple(map(self, part))
        if not is_dataclass(part) or isinstance(part, type):
            return part
        made: dict[str, Any] = {}
        for entry in fields(part):
            value = getattr(part, entry.name)
            if (type(part), entry.name) in PEERS and value is not None:
                made[entry.name] = self.first + self(value)
            elif entry.name not in ("source", "dtype") or isinstance(value, Expr):
                made[entry.name] = self(value)
        return replace(part, **made)
