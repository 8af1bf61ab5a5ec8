"""Whether every name in a plan is bound before it is used, and still bound where it is used.

Integers: ``unit``, a loop index, a carried or merged integer, the result of ``ReadScalar``, the member that
``ReceiveAny`` took. Tiles: a declared tile, a message, a carried or merged tile. What a loop body or a branch
binds ends with it. A name that ends in one branch only is found when the plan is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from megatile.core.errors import did_you_mean
from megatile.core.expr import Expr, constant, symbols
from megatile.plan.model import Plan, PlanError
from megatile.plan.spec import having
from megatile.plan.statements import (
    CarryTile,
    Free,
    If,
    Loop,
    MergeTile,
    Receive,
    ReceiveAny,
    Statement,
    regions_of,
)
from megatile.plan.text import statement_text


def check_names(plan: Plan) -> None:
    for level in plan.all_levels:
        _known(level.place, {"unit"}, f"the place of level '{level.name}'")
    for tile in plan.tiles:
        _known(tile.owner, {"unit"}, f"the owner of tile '{tile.name}'")
    for channel in plan.channels:
        _known(channel.source, {"unit", "member"}, f"the source of channel '{channel.name}'")
    for group in plan.groups:
        _known(group.key, {"unit"}, f"the key of group '{group.name}'")
    declared = {tile.name: len(tile.shape) for tile in plan.tiles}
    for stream in plan.streams:
        _block(stream.body, Scope({"unit"}, dict(declared), frozenset(declared)))


def _known(value: Expr, names: set[str], where: str, place: Any = None) -> None:
    unknown = symbols(value) - names
    if unknown:
        name = min(unknown)
        advice = did_you_mean(name, names, what="integers")
        raise PlanError(f"'{name[:40]}' is no integer that is known in {where}", place=place, advice=advice)


@dataclass
class Scope:
    """The integers known at a point, and the tiles with their ranks; ``ended`` are tiles no longer known."""

    ints: set[str]
    tiles: dict[str, int]
    declared: frozenset[str]
    ended: set[str] = field(default_factory=set)

    def inner(self) -> Scope:
        return Scope(set(self.ints), dict(self.tiles), self.declared, set(self.ended))

    def rank(self, name: str, statement: Statement) -> int:
        """The rank of a tile that is known here."""
        if name in self.tiles:
            return self.tiles[name]
        if name in self.ended:
            raise PlanError(
                f"'{name[:40]}' has ended before: {statement_text(statement)}", place=statement.source
            )
        advice = did_you_mean(name, self.tiles, what="tiles")
        raise PlanError(f"there is no tile '{name[:40]}' here", place=statement.source, advice=advice)

    def bind(self, name: str, rank: int | None, statement: Statement, new: bool = False) -> None:
        """Let a name be a tile of a rank, or an integer (None). Names of the two kinds differ, a declared
        tile keeps its name, and a loop's index is new."""
        other = self.tiles if rank is None else self.ints
        if name in other or name in self.declared or (new and name in self.ints):
            kinds = ((self.declared, "a declared tile"), (self.tiles, "a tile"), (self.ints, "an integer"))
            what = next(word for names, word in kinds if name in names)
            raise PlanError(
                f"'{name[:40]}' is bound here, but it is already {what}: {statement_text(statement)}",
                place=statement.source,
                advice="take another name",
            )
        if rank is None:
            self.ints.add(name)
        else:
            self.tiles[name] = rank
            self.ended.discard(name)

    def free(self, names: tuple[str, ...], statement: Statement) -> None:
        """The names end here, if they are bound (a branch may not have); declared tiles have no end."""
        for name in names:
            if name in self.declared:
                raise PlanError(
                    f"'{name[:40]}' is a declared tile and does not end: {statement_text(statement)}",
                    place=statement.source,
                )
            if not name.isidentifier():
                raise PlanError(
                    f"{name[:40]!r} is no name: {statement_text(statement)}", place=statement.source
                )
        self.end(names)

    def end(self, names: Any) -> None:
        for name in names:
            if self.tiles.pop(name, None) is not None:
                self.ended.add(name)

    def lost(self, inner: Scope) -> set[str]:
        """Tiles of this scope that ended inside."""
        return {name for name in self.tiles if name not in inner.tiles}


def _block(body: tuple[Statement, ...], scope: Scope) -> None:
    for statement in body:
        where = statement_text(statement)
        for region in regions_of(statement):
            rank = scope.rank(region.tile, statement)
            if region.start and len(region.start) != rank:
                raise PlanError(
                    f"'{region.tile}' has {rank} dimensions, not {len(region.start)}: {where}",
                    place=statement.source,
                )
        for value in _expressions(statement):
            _known(value, scope.ints, where, statement.source)
        if isinstance(statement, Loop):
            _loop(statement, scope, where)
        elif isinstance(statement, If):
            _branch(statement, scope, where)
        elif isinstance(statement, Free):
            scope.free(statement.names, statement)
        for name in having(statement, "binds"):
            assert isinstance(statement, (Receive, ReceiveAny))
            scope.bind(name, len(statement.shape), statement)
        for name in having(statement, "counts"):
            scope.bind(name, None, statement)


def _loop(loop: Loop, scope: Scope, where: str) -> None:
    inner, ranks = scope.inner(), {}
    for carry in loop.carries:
        if isinstance(carry, CarryTile):
            ranks[carry.name] = scope.rank(carry.init, loop)
        else:
            _known(carry.init, scope.ints, where, loop.source)
    inner.bind(loop.index, None, loop, new=True)
    for carry in loop.carries:
        inner.bind(carry.name, ranks.get(carry.name), loop)
    inner.free(loop.frees, loop)
    scope.end(loop.frees)
    _block(loop.body, inner)
    for carry in loop.carries:
        if isinstance(carry, CarryTile):
            inner.rank(carry.next, loop)
        else:
            _known(carry.next, inner.ints, where, loop.source)
    bounds = [constant(e) for e in (loop.start, loop.stop, loop.step)]
    if None not in bounds and bounds[2] and len(range(*bounds)):  # type: ignore[arg-type]
        scope.end(scope.lost(inner))
    for carry in loop.carries:
        scope.bind(carry.name, ranks.get(carry.name), loop)


def _branch(branch: If, scope: Scope, where: str) -> None:
    sides = scope.inner(), scope.inner()
    _block(branch.body, sides[0])
    _block(branch.orelse, sides[1])
    ranks = {}
    for merge in branch.merges:
        for side, value in zip(sides, (merge.then, merge.orelse), strict=True):
            if isinstance(merge, MergeTile):
                ranks[merge.name] = side.rank(str(value), branch)
            else:
                _known(value, side.ints, where, branch.source)  # type: ignore[arg-type]
    scope.end(scope.lost(sides[0]) & scope.lost(sides[1]))
    for merge in branch.merges:
        scope.bind(merge.name, ranks.get(merge.name), branch)


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
