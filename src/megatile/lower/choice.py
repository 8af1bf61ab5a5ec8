"""Which implementation does a statement: what lowering asks the registry and remembers to explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, Place as Source
from megatile.core.expr import bounds, known, simplify
from megatile.hda import HDA
from megatile.ir.implementations import Request, choose
from megatile.ir.launch import ROOT, Launch
from megatile.lower.errors import LoweringError
from megatile.lower.regions import Block
from megatile.lower.streams import Frame
from megatile.lower.units import Place


@dataclass(frozen=True)
class Choice:
    """What does a statement, and what every implementation that could would take."""

    primitive: str
    name: str
    forced: bool
    prices: Mapping[str, int]
    source: Source | None


def chosen(frame: Frame, request: Request, forced: str | None) -> str:
    """The implementation of the statement that is being lowered."""
    place = frame.node.place if frame.node is not None else None
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


def copy_request(
    frame: Frame, target: Block, source: Block, between: str | None = None, paired: bool = False
) -> Request:
    """``between``: the scale whose units put or get, also where both are inside one instance."""
    lowering = frame.lowering
    away = next((block for block in (target, source) if block.at is not None), None)
    reach = between
    if away is not None and between is None:
        reach = lowering.launch.scales[max(away.home.depth, 1) - 1].name
    return Request(
        "Copy", lowering.hda, frame.level.scale, source.home.dtype, count(frame, target),
        memories=(source.home.memory, target.home.memory), reach=reach, inside=away is None,
        row=gcd(_row(source), _row(target)), paired=paired,
        ahead=frame.looped or _several(lowering.launch, lowering.hda),
    )  # fmt: skip


def _several(launch: Launch, hda: HDA) -> bool:
    """Whether units have several instances of a launch, one of which works while another waits."""
    above = 1 if launch.host == ROOT else hda.count(launch.host)
    return launch.count(launch.dispatch, launch.host) * above > hda.count(launch.dispatch)


def reach_of(frame: Frame, peer: Place) -> str:
    """The largest scale at which a peer is, or is in, another unit than this one."""
    launch, mine = frame.place.launch, frame.place.path
    apart = (
        s.name for s, a, b in zip(launch.scales, mine, peer.path, strict=False) if a != b and s.count > 1
    )
    return next(apart, launch.scales[frame.group[1] - 1].name)


def _row(block: Block) -> int:
    """Bytes that the rows of a block, and what lies between their beginnings, have in common; 0: they follow
    each other without a gap, or only the run tells."""
    width, found = itemsize(block.home.dtype), 0
    run = width
    for axis, whole in reversed(list(zip(block.axes, block.home.extents, strict=True))):
        size = known(axis.size)
        if size is None or found:
            return found
        run *= size
        if size != whole:
            found = gcd(run, width * block.home.extents[-1])
    return found or run
