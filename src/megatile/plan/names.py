"""Whether every name has been bound before it is used. Integers: a loop index, a carried or merged integer,
the result of ``ReadScalar``, the member that ``ReceiveAny`` took. Tiles: a declared tile, a message, a
carried or merged tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.core.expr import Expr, symbols
from megatile.plan.model import Plan, PlanError
from megatile.plan.statements import CarryInt, CarryTile, If, Loop, MergeInt, Statement, binds, regions_of
from megatile.plan.text import statement_text


def check_names(plan: Plan) -> None:
    _known(plan.place, {"unit"}, f"the place of plan '{plan.name}'")
    for level in plan.levels:
        _known(level.place, {"unit"}, f"the place of level '{level.name}'")
    for tile in plan.tiles:
        _known(tile.owner, {"unit"}, f"the owner of tile '{tile.name}'")
    for channel in plan.channels:
        _known(channel.source, {"unit", "member"}, f"the source of channel '{channel.name}'")
    for group in plan.groups:
        _known(group.key, {"unit"}, f"the key of group '{group.name}'")
    for stream in plan.streams:
        _block(stream.body, {"unit"}, {tile.name for tile in plan.tiles})


def _known(value: Expr, names: set[str], where: str, place: Any = None) -> None:
    unknown = symbols(value) - names
    if unknown:
        name = min(unknown)
        advice = did_you_mean(name, names, what="integers")
        raise PlanError(f"'{name[:40]}' is no integer that is known in {where}", place=place, advice=advice)


def _tile(name: str, tiles: set[str], place: Any) -> None:
    if name not in tiles:
        advice = did_you_mean(name, tiles, what="tiles")
        raise PlanError(f"there is no tile '{name[:40]}' here", place=place, advice=advice)


def _block(body: tuple[Statement, ...], names: set[str], tiles: set[str]) -> None:
    """``names`` (integers) and ``tiles`` grow by what the body binds; a name that has ended is found when the
    plan is walked.
    """
    for statement in body:
        for region in regions_of(statement):
            _tile(region.tile, tiles, statement.source)
        where = statement_text(statement)
        for value in _expressions(statement):
            _known(value, names, where, statement.source)
        if isinstance(statement, Loop):
            _loop(statement, names, tiles, where)
        elif isinstance(statement, If):
            _block(statement.body, names, tiles)
            _block(statement.orelse, names, tiles)
            for merge in statement.merges:
                if isinstance(merge, MergeInt):
                    for value in (merge.then, merge.orelse):
                        _known(value, names, where, statement.source)
        bound_tiles, bound_ints = binds(statement)
        tiles |= set(bound_tiles)
        names |= set(bound_ints)


def _loop(loop: Loop, names: set[str], tiles: set[str], where: str) -> None:
    tiles |= {carry.name for carry in loop.carries if isinstance(carry, CarryTile)}
    carries = [carry for carry in loop.carries if isinstance(carry, CarryInt)]
    for carry in carries:
        _known(carry.init, names, where, loop.source)
    names |= {loop.index, *(carry.name for carry in carries)}
    _block(loop.body, names, tiles)
    for carry in carries:
        _known(carry.next, names, where, loop.source)


def _expressions(value: Any) -> Iterator[Expr]:
    """The expressions of one statement, without those of the statements and flows inside it."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _expressions(item)
    elif is_dataclass(value):
        for entry in fields(value):
            if entry.name not in ("body", "orelse", "carries", "merges"):
                yield from _expressions(getattr(value, entry.name))
