"""The dimensions of boxes that belong together, and the places of their elements."""

from __future__ import annotations

from megatile.core.expr import constant
from megatile.targets.common.errors import CompileError
from megatile.targets.common.expressions import whole
from megatile.targets.common.scope import Axis, Box, Scope

Pair = tuple[Axis, Axis]


def matched(scope: Scope, to: Box, source: Box) -> list[Pair]:
    """The dimensions of two boxes that belong together; those of one element belong to none."""
    left = [a for a in to.axes if constant(a.extent) != 1]
    right = [a for a in source.axes if constant(a.extent) != 1]
    if len(left) != len(right):
        raise CompileError(
            "the sides of this statement have extents that are known only at run time, and a "
            "different number of them",
            advice="give both sides the same dimensions",
        )
    for a, b in zip(left, right, strict=True):
        if a.extent != b.extent:
            if constant(a.extent) is not None and constant(b.extent) is not None:
                raise CompileError(f"extents {a.extent} and {b.extent} differ", advice="copy equal shapes")
            x, y = whole(a.extent, scope), whole(b.extent, scope)
            site = scope.site("shape", "the two sides have different extents, one of them {}")
            scope.text.add(f"if ({x} != {y}) fail(failure, {site}, {y});")
    return list(zip(left, right, strict=True))


def single(box: Box) -> tuple[str, list[str]]:
    """The pointer past dimensions of one element, and the conditions under which those exist."""
    found, conditions = box.pointer, [box.guard] if box.guard else []
    for axis in box.axes:
        if constant(axis.extent) == 1:
            if axis.low is not None:
                conditions.append(f"{axis.low} < {axis.high}")
            if axis.table is not None:
                found += f" + {axis.table}[0] * {axis.stride}"
    return found, conditions


def offset(axis: Axis, index: str) -> str:
    place = f"{axis.table}[{index}]" if axis.table else index
    if place == "0":
        return ""
    return f" + {place}" if axis.stride == 1 else f" + ({place}) * {axis.stride}"


def refuse_parts(box: Box) -> None:
    if box.parts:
        raise CompileError(
            f"'{box.storage.name}', of which smaller units hold different parts, is read as a whole, which "
            "cannot be compiled yet",
            advice="T.allgather its view first",
        )
