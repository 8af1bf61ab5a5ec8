"""Which implementation does a statement: what lowering asks the registry and remembers to explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from megatile.core.errors import MegatileError, Place
from megatile.core.expr import bounds, known, simplify
from megatile.ir.implementations import Request, choose
from megatile.lower.errors import LoweringError
from megatile.lower.regions import Block
from megatile.lower.streams import Frame


@dataclass(frozen=True)
class Choice:
    """What does a statement, and what every implementation that could would take."""

    primitive: str
    name: str
    forced: bool
    prices: Mapping[str, int]
    source: Place | None


def chosen(frame: Frame, request: Request, forced: str | None) -> str:
    """The implementation of the statement that is being lowered."""
    node = frame.node
    place = node.span.place() if node is not None and node.span else None
    try:
        name, found = choose(request, forced)
    except MegatileError as error:
        raise LoweringError(error.message, place=place, advice=error.advice) from None
    choice = Choice(request.primitive.lower(), name, forced is not None, found, place)
    frame.lowering.choices.setdefault((request.primitive, str(place), name, request.elements), choice)
    return name


def count(frame: Frame, block: Block) -> int:
    """Elements of a block; where they vary, the most."""
    size = simplify(block.elements)
    exact = known(size)
    if exact is not None:
        return int(exact)
    found = bounds(size, frame.ranges)
    return int(found[1]) if found is not None else 0


def copy_request(frame: Frame, target: Block, source: Block, between: bool = False) -> Request:
    """``between``: units put or get, also where both are inside one instance."""
    lowering = frame.lowering
    away = next((block for block in (target, source) if block.at is not None), None)
    reach = None
    if away is not None or between:
        depth = away.home.depth if away is not None else frame.group[1]
        reach = lowering.launch.scales[max(depth, 1) - 1].name
    return Request(
        "Copy", lowering.hda, frame.level.scale, source.home.dtype, count(frame, target),
        memories=(source.home.memory, target.home.memory), reach=reach, inside=away is None,
    )  # fmt: skip
