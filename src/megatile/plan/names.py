"""Check that every name in a plan is bound where it is used.

Integers: ``unit``, a loop index, a carried or merged integer, the result of ``ReadScalar``, the member that
``ReceiveAny`` took. Tiles: a declared tile, a message, a carried or merged tile. What a loop body or a branch
binds ends with it. A name that ends in one branch only is found when the plan is followed. Constant regions
that lie outside their tile are found here too, where it is certain that the command runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from megatile.core.cached import cached
from megatile.core.errors import did_you_mean
from megatile.core.expr import Const, Expr, constant, symbols, trips
from megatile.plan.model import Plan, PlanError
from megatile.plan.statements import (
    CarryTile,
    Flow,
    Free,
    If,
    Loop,
    MergeTile,
    Receive,
    ReceiveAny,
    Region,
    Statement,
    integers_bound,
    regions_of,
    tiles_bound,
)
from megatile.plan.text import statement_text


class OutsideError(PlanError):
    """An access to elements that a tile does not have: the first unit that does it, whose copy, where."""

    def __init__(
        self, message: str, unit: int = 0, owner: int = 0, start: tuple[int, ...] = (), place: Any = None
    ) -> None:
        super().__init__(message, place=place)
        self.unit, self.owner, self.start = unit, owner, start

    def by(self, unit: int, region: Region) -> OutsideError:
        """Return the same with the unit, if the region depends on nothing else."""

        def value(expression: Expr, otherwise: int = 0) -> int:
            return int(expression.evaluate({"unit": unit})) if symbols(expression) <= {"unit"} else otherwise

        self.unit, self.owner = unit, unit if region.at is None else value(region.at, unit)
        self.start = tuple(map(value, region.start))
        return self


def check_names(plan: Plan) -> None:
    for level in plan.all_levels:
        _known(level.place, {"unit"}, f"the place of level '{level.name}'")
    for tile in plan.tiles:
        _known(tile.owner, {"unit"}, f"the owner of tile '{tile.name}'")
    for channel in plan.channels:
        _known(channel.source, {"unit", "member"}, f"the source of channel '{channel.name}'")
    for group in plan.groups:
        _known(group.key, {"unit"}, f"the key of group '{group.name}'")
    declared: dict[str, Shape] = {tile.name: tile.shape for tile in plan.tiles}
    for stream in plan.streams:
        first = next(iter(stream.unit_numbers()), 0)
        _block(stream.body, Scope({"unit"}, dict(declared), frozenset(declared), first=first))


def _known(value: Expr, names: set[str], where: str | Statement) -> None:
    unknown = symbols(value) - names
    if unknown:
        name, place = min(unknown), None if isinstance(where, str) else where.source
        text = where if isinstance(where, str) else statement_text(where)
        advice = did_you_mean(name, names, what="integers")
        raise PlanError(
            f"'{name[:40]}' is not an integer that is known in {text}", place=place, advice=advice
        )


Shape = tuple[int | None, ...]
"""The extents of a tile; None where only following the plan tells."""


@dataclass
class Scope:
    """The integers known at a point, and the tiles with their shapes; ``ended`` are tiles no longer known.
    ``certain``: every unit of the stream comes here, its ``first`` one too."""

    ints: set[str]
    tiles: dict[str, Shape]
    declared: frozenset[str]
    ended: set[str] = field(default_factory=set)
    certain: bool = True
    first: int = 0

    def inner(self, certain: bool) -> Scope:
        known = certain and self.certain
        return Scope(set(self.ints), dict(self.tiles), self.declared, set(self.ended), known, self.first)

    def shape(self, name: str, statement: Statement) -> Shape:
        """Return the shape of a tile that is known here."""
        if name in self.tiles:
            return self.tiles[name]
        if name in self.ended:
            raise PlanError(
                f"'{name[:40]}' has ended before: {statement_text(statement)}", place=statement.source
            )
        advice = did_you_mean(name, self.tiles, what="tiles")
        raise PlanError(f"there is no tile '{name[:40]}' here", place=statement.source, advice=advice)

    def bind(self, name: str, shape: Shape | None, statement: Statement, new: bool = False) -> None:
        """Let a name be a tile of a shape, or an integer (None). Names of the two kinds differ, a declared
        tile keeps its name, and a loop's index is new."""
        other = self.tiles if shape is None else self.ints
        if name in other or name in self.declared or (new and name in self.ints):
            kinds = ((self.declared, "a declared tile"), (self.tiles, "a tile"), (self.ints, "an integer"))
            what = next(word for names, word in kinds if name in names)
            raise PlanError(
                f"'{name[:40]}' is bound here, but it is already {what}: {statement_text(statement)}",
                place=statement.source,
                advice="take another name",
            )
        if shape is None:
            self.ints.add(name)
        else:
            self.tiles[name] = shape
            self.ended.discard(name)

    def free(self, names: tuple[str, ...], statement: Statement) -> None:
        """End the names here, if they are bound (a branch may not have); declared tiles have no end."""
        for name in names:
            if name in self.declared:
                raise PlanError(
                    f"'{name[:40]}' is a declared tile and does not end: {statement_text(statement)}",
                    place=statement.source,
                )
            if not name.isidentifier():
                raise PlanError(
                    f"{name[:40]!r} is not a name: {statement_text(statement)}", place=statement.source
                )
        self.end(names)

    def end(self, names: Any) -> None:
        for name in names:
            if self.tiles.pop(name, None) is not None:
                self.ended.add(name)

    def lost(self, inner: Scope) -> set[str]:
        """Return tiles of this scope that ended inside."""
        return {name for name in self.tiles if name not in inner.tiles}


def _block(body: tuple[Statement, ...], scope: Scope) -> None:
    for statement in body:
        for region in regions_of(statement):
            _inside(region, scope.shape(region.tile, statement), statement, scope)
        for value in _expressions(statement):
            _known(value, scope.ints, statement)
        if isinstance(statement, Loop):
            _loop(statement, scope)
        elif isinstance(statement, If):
            _branch(statement, scope)
        elif isinstance(statement, Free):
            scope.free(statement.names, statement)
        for name in tiles_bound(statement):
            assert isinstance(statement, (Receive, ReceiveAny))
            scope.bind(name, tuple(map(constant, statement.shape)), statement)
        for name in integers_bound(statement):
            scope.bind(name, None, statement)


def _inside(region: Region, extents: Shape, statement: Statement, scope: Scope) -> None:
    """Check that a region has the rank of its tile and, if its bounds are constant, lies inside it."""
    if region.start and len(region.start) != len(extents):
        text = f"'{region.tile}' has {len(extents)} dimensions, not {len(region.start)}"
        raise PlanError(f"{text}: {statement_text(statement)}", place=statement.source)
    if not scope.certain or not region.start:
        return
    for start, length, extent in zip(region.start, region.shape, extents, strict=True):
        first, count = constant(start), constant(length)
        if first is None or count is None or extent is None:
            continue
        if first < 0 or count < 0 or first + count > extent:
            text = f"'{region.tile}' of extents {extents} has no elements {first}:{first + count}"
            text = f"{text}: {statement_text(statement)}"
            raise OutsideError(text, place=statement.source).by(scope.first, region)


def _loop(loop: Loop, scope: Scope) -> None:
    runs = bool(trips(loop))
    inner = scope.inner(runs)
    shapes = {carry.name: _flow(carry, 0, scope, loop) for carry in loop.carries}
    inner.bind(loop.index, None, loop, new=True)
    for name, shape in shapes.items():
        inner.bind(name, shape, loop)
    inner.free(loop.frees, loop)
    scope.end(loop.frees)
    _block(loop.body, inner)
    for carry in loop.carries:
        _flow(carry, 1, inner, loop)
    if runs:
        scope.end(scope.lost(inner))
    for name, shape in shapes.items():
        scope.bind(name, shape, loop)


def _branch(branch: If, scope: Scope) -> None:
    sides = scope.inner(False), scope.inner(False)
    _block(branch.body, sides[0])
    _block(branch.orelse, sides[1])
    shapes = {}
    for merge in branch.merges:
        for number, side in enumerate(sides):
            shapes[merge.name] = _flow(merge, number, side, branch)
    scope.end(scope.lost(sides[0]) & scope.lost(sides[1]))
    for name, shape in shapes.items():
        scope.bind(name, shape, branch)


def _flow(flow: Flow, side: int, scope: Scope, statement: Statement) -> Shape | None:
    """Return the shape of a tile that is carried or merged, which may have other extents in the next
    iteration or in the other branch; None for an integer. What it means is known in the scope."""
    if isinstance(flow, (CarryTile, MergeTile)):
        return (None,) * len(scope.shape(flow.values[side], statement))
    _known(flow.values[side], scope.ints, statement)
    return None


def _expressions(value: Any) -> list[Expr]:
    """Return the expressions of one statement that may name something, without those of the statements and
    flows inside it."""
    found: list[Expr] = []
    for name in _parts(value.__class__):
        part = getattr(value, name)
        for item in part if isinstance(part, tuple) else (part,):
            if isinstance(item, Expr):
                found += [] if isinstance(item, Const) else [item]
            elif isinstance(item, tuple):  # an attribute
                found += [each for each in item if isinstance(each, Expr)]
            elif item is not None:
                found += _expressions(item)
    return found


@cached()
def _parts(kind: type) -> list[str]:
    """Return the fields in which a dataclass may have expressions, beside the statements and flows inside
    it."""
    if not is_dataclass(kind):
        return []
    inside = ("body", "orelse", "carries", "merges", "source")
    return [f.name for f in fields(kind) if f.name not in inside and not _PLAIN.fullmatch(str(f.type))]


_PLAIN = re.compile(r"(str|bool|int)( \| None)?|tuple\[(str|int), \.\.\.\]")
"""Types of what is not an expression."""
