"""The statements of a stream. What they mean is defined in ``model.py``; ``place`` is where a statement was
written and no part of a plan's identity (neither of ``==`` nor of its hash)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from megatile.core.errors import Place
from megatile.core.expr import ONE, ZERO, Expr


@dataclass(frozen=True)
class Region:
    """A block of a tile: ``start`` and ``shape`` per dimension; both empty for all of it. ``at`` names
    another owner.
    """

    tile: str
    start: tuple[Expr, ...] = ()
    shape: tuple[Expr, ...] = ()
    at: Expr | None = None


@dataclass(frozen=True)
class Work:
    """What a command has to do, never how long it takes: floating point operations, bytes moved, element
    type.
    """

    flops: Expr = ZERO
    bytes: Expr = ZERO
    dtype: str = "f32"


Attribute = Union[int, float, str, bool, Expr]  # noqa: UP007


@dataclass(frozen=True)
class Compute:
    """Apply ``operation`` (of ``core.operations``) to ``reads`` and put the result in ``write``.

    Copies, casts and fills are operations too (``copy`` on engine ``dma``). ``attributes`` are sorted by
    name.
    """

    operation: str
    write: Region
    reads: tuple[Region, ...] = ()
    attributes: tuple[tuple[str, Attribute], ...] = ()
    engine: str = "vector"
    work: Work = Work()
    fresh: bool = False
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Send:
    """Send a region as one message to queue (``to``, ``member``) of ``channel``."""

    channel: str
    to: Expr
    member: Expr
    read: Region
    work: Work = Work()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Receive:
    """Take the next message of my queue ``member``: bind ``name`` to its slot, or copy it ``into`` a region.

    ``shape`` and ``dtype`` say how the bytes are read; they must be exactly as many as were sent. With
    ``into`` and ``fresh`` the copy begins a new version of the destination tile.
    """

    channel: str
    member: Expr
    name: str | None
    shape: tuple[Expr, ...]
    dtype: str
    into: Region | None = None
    fresh: bool = False
    work: Work = Work()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ReceiveAny:
    """Like ``Receive`` from whichever of ``members`` has a message; ``chosen`` becomes the member taken."""

    channel: str
    members: tuple[int, ...]
    name: str | None
    chosen: str
    shape: tuple[Expr, ...]
    dtype: str
    into: Region | None = None
    fresh: bool = False
    work: Work = Work()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class ReadScalar:
    """Read one integer element; ``name`` is its value from here on. 0 <= value <= ``bound`` is checked."""

    name: str
    read: Region
    bound: int
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Signal:
    """Count ``flag[member]`` of unit ``to`` up by ``amount``, after this unit's earlier shared accesses."""

    flag: str
    to: Expr
    member: Expr = ZERO
    amount: Expr = ONE
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Wait:
    """Hold issue until my ``flag[member]`` is at least ``value``."""

    flag: str
    value: Expr
    member: Expr = ZERO
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Collective:
    """All units of my group of ``group`` meet here: "barrier", "all_reduce" (``reduction``) or "broadcast"
    (from ``root``, the rank within the group in unit order)."""

    kind: str
    group: str
    read: Region | None = None
    write: Region | None = None
    reduction: str = "sum"
    root: Expr = ZERO
    work: Work = Work()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Free:
    """The named handles end here. For a slot whose last name this is, the credit returns when its users have
    finished.
    """

    names: tuple[str, ...]
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class CarryTile:
    """In a loop, ``name`` means ``init`` in the first iteration and what ``next`` meant at the end of the one
    before.
    """

    name: str
    init: str
    next: str


@dataclass(frozen=True)
class CarryInt:
    name: str
    init: Expr
    next: Expr


@dataclass(frozen=True)
class Loop:
    """``for index in range(start, stop, step)``; ``step`` is not 0. All ``next`` are taken at once at the end
    of an iteration.

    ``frees`` end right after the carried names have been bound (a name whose last use is to begin a carry).
    After the loop the carried names have their last meaning (``init`` when it ran zero times).
    """

    index: str
    start: Expr
    stop: Expr
    body: tuple[Statement, ...]
    step: Expr = ONE
    carries: tuple[CarryTile | CarryInt, ...] = ()
    frees: tuple[str, ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class MergeTile:
    """After an ``If``, ``name`` means ``then`` or ``orelse``, whichever branch was taken."""

    name: str
    then: str
    orelse: str


@dataclass(frozen=True)
class MergeInt:
    name: str
    then: Expr
    orelse: Expr


@dataclass(frozen=True)
class If:
    """``body`` where ``condition`` is not 0, else ``orelse``; each unit decides for itself."""

    condition: Expr
    body: tuple[Statement, ...] = ()
    orelse: tuple[Statement, ...] = ()
    merges: tuple[MergeTile | MergeInt, ...] = ()
    place: Place | None = field(default=None, compare=False, repr=False)


Statement = Union[  # noqa: UP007
    Compute, Send, Receive, ReceiveAny, ReadScalar, Signal, Wait, Collective, Free, Loop, If
]


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement, outer before inner, in text order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)
        elif isinstance(statement, If):
            yield from statements(statement.body)
            yield from statements(statement.orelse)
