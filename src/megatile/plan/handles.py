"""Names of tiles while a plan is built, and regions of them.

``handle[i, 0:n]`` is a region: an index counts as an extent of 1, a slice runs from start to stop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from megatile.core.dtypes import itemsize
from megatile.core.expr import ONE, Expr, IntLike, expr, simplify
from megatile.core.operations import work_of
from megatile.plan.model import PlanError, Region, Work

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
        start: list[Expr] = []
        shape: list[Expr] = []
        for axis, extent in enumerate(self.shape):
            item = items[axis] if axis < len(items) else slice(None)
            low, length = _interval(item, extent)
            start.append(low)
            shape.append(length)
        if len(items) > len(self.shape):
            raise PlanError(f"{self.name} has {len(self.shape)} dimensions, not {len(items)}")
        return Part(self, Region(self.name, tuple(start), tuple(shape)))

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
    """Floating point operations and bytes of a command, from its operation and shapes."""
    flops = expr(work_of(operation, target.shape, [p.shape for p in parts], attributes))
    moved = nbytes_of(target)
    for read in parts:
        moved = moved + nbytes_of(read)
    if operation == "copy":
        moved = nbytes_of(target)
    return Work(flops, moved, parts[0].dtype if parts else target.dtype)
