"""What a plan is built with: names of tiles and regions of them, loops and branches under construction
(what ``PlanBuilder.loop`` and ``PlanBuilder.when`` give).

``handle[i, 0:n]`` is a region: an index counts as an extent of 1, a slice runs from start to stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from megatile.core.dtypes import itemsize
from megatile.core.errors import Place
from megatile.core.expr import ONE, Expr, IntLike, Symbol, expr, simplify
from megatile.core.operations import work_of
from megatile.plan.model import (
    CarryInt,
    CarryTile,
    If,
    MergeInt,
    MergeTile,
    PlanError,
    Region,
    Statement,
    Work,
)

if TYPE_CHECKING:
    from megatile.plan.build import PlanBuilder

Shape = tuple[IntLike, ...]


@dataclass(frozen=True)
class Handle:
    """A name of a tile in a stream, with what is needed to use it."""

    name: str
    shape: Shape
    dtype: str
    memory: str

    def __getitem__(self, index: Any) -> Part:
        items = index if isinstance(index, tuple) else (index,)
        if len(items) > len(self.shape):
            raise PlanError(f"{self.name} has {len(self.shape)} dimensions, not {len(items)}")
        items += (slice(None),) * (len(self.shape) - len(items))
        spans = [_interval(item, extent) for item, extent in zip(items, self.shape, strict=True)]
        return Part(self, Region(self.name, tuple(low for low, _ in spans), tuple(n for _, n in spans)))

    def whole(self) -> Part:
        return Part(self, Region(self.name))

    def at(self, owner: IntLike) -> Part:
        """Another owner's copy (a put or a get)."""
        return Part(self, Region(self.name, at=expr(owner)))


def _interval(item: Any, extent: IntLike) -> tuple[Expr, Expr]:
    if not isinstance(item, slice):
        return expr(item), ONE
    low = expr(0 if item.start is None else item.start)
    high = expr(extent if item.stop is None else item.stop)
    return low, simplify(high - low)


@dataclass(frozen=True)
class Part:
    """A region together with the handle it belongs to."""

    handle: Handle
    region: Region

    @property
    def shape(self) -> Shape:
        return self.region.shape or self.handle.shape

    @property
    def dtype(self) -> str:
        return self.handle.dtype

    def at(self, owner: IntLike) -> Part:
        return replace(self, region=replace(self.region, at=expr(owner)))


Operand = Handle | Part


def part(operand: Operand) -> Part:
    return operand.whole() if isinstance(operand, Handle) else operand


def nbytes_of(operand: Operand) -> Expr:
    return expr(prod(operand.shape)) * itemsize(operand.dtype)


def work_for(operation: str, target: Part, parts: list[Part], attributes: dict[str, Any]) -> Work:
    """Return floating point operations and bytes of a command, from its operation and shapes."""
    flops = expr(work_of(operation, target.shape, [p.shape for p in parts], attributes))
    moved = nbytes_of(target)
    for read in parts if operation != "copy" else ():
        moved = moved + nbytes_of(read)
    return Work(flops, moved, parts[0].dtype if parts else target.dtype)


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
        """Return a name that means ``then`` after the one branch and ``orelse`` after the other."""
        if isinstance(then, Handle) and isinstance(orelse, Handle):
            if (then.shape, then.dtype) != (orelse.shape, orelse.dtype):
                raise PlanError(f"{then.name} and {orelse.name} differ in shape or dtype", place=self.place)
            merged: Any = replace(then, name=self.builder.fresh(name or then.name))
            self.merges.append(MergeTile(merged.name, then.name, orelse.name))
        else:
            merged = Symbol(self.builder.fresh(name or "merged"))
            self.merges.append(MergeInt(merged.name, expr(then), expr(orelse)))
        self._rewrite()
        return merged

    def _rewrite(self) -> None:
        then, orelse = (*self.sides, (), ())[:2]
        self.builder.body[-1] = If(self.condition, then, orelse, tuple(self.merges), self.place)


def carry_of(scope: LoopScope, name: str, init: Any) -> CarryTile | CarryInt:
    """Return the carry of one name, from what the loop's body made of it."""
    inside = scope.carried[name]
    following = scope.following.get(name, inside)
    if isinstance(inside, Handle):
        if not isinstance(following, Handle):
            raise PlanError(f"'{name}' is a tile and must stay one")
        if (following.shape, following.dtype) != (inside.shape, inside.dtype):
            raise PlanError(f"'{name}' changes shape or dtype in the loop")
        return CarryTile(inside.name, init.name, following.name)
    return CarryInt(inside.name, expr(init), expr(following))  # type: ignore[arg-type]
