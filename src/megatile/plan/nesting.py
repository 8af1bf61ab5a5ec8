"""Loops and branches under construction: what ``PlanBuilder.loop`` and ``PlanBuilder.when`` give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from megatile.core.errors import Place
from megatile.core.expr import Expr, IntLike, Symbol, expr
from megatile.plan.handles import Handle, Operand
from megatile.plan.model import CarryInt, CarryTile, If, MergeInt, MergeTile, PlanError, Statement

if TYPE_CHECKING:
    from megatile.plan.build import PlanBuilder


class LoopScope:
    """The inside of a loop: its ``index``, and the carried names as attributes; ``next`` says what they
    become.
    """

    def __init__(self, index: Symbol, carried: dict[str, Handle | Symbol]):
        self.index = index
        self.carried = carried
        self.following: dict[str, Operand | IntLike] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.carried[name]
        except KeyError:
            raise AttributeError(f"the loop carries no '{name}'") from None

    def next(self, **values: Any) -> None:
        """What carried names mean in the next iteration; those not mentioned stay."""
        for name, value in values.items():
            if name not in self.carried:
                raise PlanError(f"the loop carries no '{name}'")
            self.following[name] = value


class BranchScope:
    """An ``If`` under construction; see ``PlanBuilder.when``."""

    def __init__(self, builder: PlanBuilder, condition: Expr, place: Place | None):
        self.builder, self.condition, self.place = builder, condition, place
        self.sides: list[tuple[Statement, ...]] = []
        self.merges: list[MergeTile | MergeInt] = []

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        with self.builder.collect() as body:
            yield
        self.sides.append(tuple(body))
        self._rewrite()

    def merge(self, then: Any, orelse: Any, name: str | None = None) -> Any:
        """A name that means ``then`` after the one branch and ``orelse`` after the other."""
        if isinstance(then, Handle) and isinstance(orelse, Handle):
            if (then.shape, then.dtype) != (orelse.shape, orelse.dtype):
                raise PlanError(f"{then.name} and {orelse.name} differ in shape or dtype", place=self.place)
            merged = replace(then, name=self.builder.fresh(name or then.name))
            self.merges.append(MergeTile(merged.name, then.name, orelse.name))
            self._rewrite()
            return merged
        symbol = Symbol(self.builder.fresh(name or "merged"))
        self.merges.append(MergeInt(symbol.name, expr(then), expr(orelse)))
        self._rewrite()
        return symbol

    def _rewrite(self) -> None:
        then, orelse = (*self.sides, (), ())[:2]
        statement = If(self.condition, then, orelse, tuple(self.merges), self.place)
        self.builder.body[-1] = statement


def carry_of(scope: LoopScope, name: str, init: Any) -> CarryTile | CarryInt:
    """The carry of one name, from what the loop's body made of it."""
    inside = scope.carried[name]
    following = scope.following.get(name, inside)
    if isinstance(inside, Handle):
        if not isinstance(following, Handle):
            raise PlanError(f"'{name}' is a tile and must stay one")
        if (following.shape, following.dtype) != (inside.shape, inside.dtype):
            raise PlanError(f"'{name}' changes shape or dtype in the loop")
        return CarryTile(inside.name, init.name, following.name)
    return CarryInt(inside.name, expr(init), expr(following))  # type: ignore[arg-type]
