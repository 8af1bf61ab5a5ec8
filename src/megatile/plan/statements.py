"""The statements of a stream. What they mean is defined in ``model.py``; ``source`` is where a statement was
written and no part of a plan's identity (neither of ``==`` nor of its hash).

A command is declared once, here: its ``word``, and for each field what it holds and where it is written
(``spec.py``). What it does stands in ``commands.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Union

from megatile.core.errors import Place
from megatile.core.expr import ONE, ZERO, Expr
from megatile.plan.spec import ARGUMENT, HIDDEN, KEYWORD, TARGET, having, part

__all__ = [
    "Attribute", "CarryInt", "CarryTile", "Collective", "Compute", "Free", "If", "Loop", "MergeInt",
    "MergeTile", "ReadScalar", "Receive", "ReceiveAny", "Region", "Send", "Signal", "Start", "Statement",
    "Wait", "Work", "statements",
]  # fmt: skip


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
    type. ``fetched``: bytes of memories above the unit, where lanes take elements far apart or data choose
    them (0: the bytes of the operands). ``atomics``: how many atomics change one address, one after the
    other.
    """

    flops: Expr = ZERO
    bytes: Expr = ZERO
    dtype: str = "f32"
    fetched: int = 0
    atomics: int = 0


Attribute = Union[int, float, str, bool, Expr]  # noqa: UP007


def _source() -> Any:
    return field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Compute:
    """Apply ``operation`` (of ``core.operations``) to ``reads`` and put the result in ``write``.

    Copies, casts and fills are operations too (``copy`` on engine ``dma``). ``attributes`` are sorted by
    name. ``by`` names one of the machine's DMA engines, whose figures a copy takes (else the nearest one's),
    or, of another command, the transport whose kernel does it.
    """

    word: ClassVar[str] = "compute"
    operation: str = part("word", HIDDEN)
    write: Region = part("region", TARGET, role="writes")
    reads: tuple[Region, ...] = part("regions", ARGUMENT, (), role="reads")
    attributes: tuple[tuple[str, Attribute], ...] = part("attributes", KEYWORD, ())
    engine: str = part("engine", KEYWORD, "vector")
    work: Work = part("work", KEYWORD, Work())
    fresh: bool = part("fresh", HIDDEN, False)
    source: Place | None = _source()
    by: str = part("text", KEYWORD, "")


@dataclass(frozen=True)
class Send:
    """Send a region as one message to queue (``to``, ``member``) of ``channel``."""

    word: ClassVar[str] = "send"
    channel: str = part("word", ARGUMENT, role="channel")
    to: Expr = part("expr", decides=True)
    member: Expr = part("expr", omit=ZERO, decides=True)
    read: Region = part("region", ARGUMENT, role="reads")
    work: Work = part("work", KEYWORD, Work(), decides=True)
    source: Place | None = _source()


@dataclass(frozen=True)
class Receive:
    """Take the next message of my queue ``member``: bind ``name`` to its slot, or copy it ``into`` a region.

    ``shape`` and ``dtype`` say how the bytes are read; they must be exactly as many as were sent. With
    ``into`` and ``fresh`` the copy begins a new version of the destination tile.
    """

    word: ClassVar[str] = "receive"
    channel: str = part("word", ARGUMENT, role="channel")
    member: Expr = part("expr", omit=ZERO, decides=True)
    name: str | None = part("word", TARGET, role="binds")
    shape: tuple[Expr, ...] = part("typed", ARGUMENT, decides=True)
    dtype: str = part("word", HIDDEN)
    into: Region | None = part("region", TARGET, None, role="writes")
    fresh: bool = part("fresh", HIDDEN, False)
    work: Work = part("work", KEYWORD, Work(), decides=True)
    source: Place | None = _source()


@dataclass(frozen=True)
class ReceiveAny:
    """Like ``Receive`` from whichever of ``members`` has a message; ``chosen`` becomes the member taken."""

    word: ClassVar[str] = "receive_any"
    channel: str = part("word", ARGUMENT, role="channel")
    members: tuple[int, ...] = part("literal")
    name: str | None = part("word", TARGET, role="binds")
    chosen: str = part("word", TARGET, order=1, role="counts")
    shape: tuple[Expr, ...] = part("typed", ARGUMENT)
    dtype: str = part("word", HIDDEN)
    into: Region | None = part("region", TARGET, None, role="writes")
    fresh: bool = part("fresh", HIDDEN, False)
    work: Work = part("work", KEYWORD, Work())
    source: Place | None = _source()


@dataclass(frozen=True)
class ReadScalar:
    """Read one integer element; ``name`` is its value from here on. 0 <= value <= ``bound`` is checked.

    With ``combine`` (add, max, min, and, or, xor, exchange; or cas, which stores ``value`` only where
    ``expected`` is) the element, which ``write`` names too, is combined with ``value``, indivisibly: of units
    that come at the same time, each reads what the one before has left."""

    word: ClassVar[str] = "read_scalar"
    name: str = part("word", TARGET, role="counts")
    read: Region = part("region", ARGUMENT, role="reads")
    bound: int = part("literal")
    write: Region | None = part("region", KEYWORD, None, role="writes")
    combine: str = part("text", KEYWORD, "")
    value: Expr = part("expr", KEYWORD, ZERO)
    expected: Expr = part("expr", KEYWORD, ZERO)
    source: Place | None = _source()


@dataclass(frozen=True)
class Signal:
    """Count ``flag[member]`` of unit ``to`` up by ``amount``, after this unit's earlier shared accesses."""

    word: ClassVar[str] = "signal"
    flag: str = part("word", ARGUMENT, role="flag")
    to: Expr = part("expr")
    member: Expr = part("expr", KEYWORD, ZERO)
    amount: Expr = part("expr", KEYWORD, ONE)
    source: Place | None = _source()


@dataclass(frozen=True)
class Wait:
    """Hold issue until my ``flag[member]`` is at least ``value``."""

    word: ClassVar[str] = "wait"
    flag: str = part("word", ARGUMENT, role="flag")
    value: Expr = part("expr")
    member: Expr = part("expr", KEYWORD, ZERO)
    source: Place | None = _source()


@dataclass(frozen=True)
class Collective:
    """All units of my group of ``group`` meet here: "barrier", "all_reduce" (``reduction``) or "broadcast"
    (from ``root``, the rank within the group in unit order)."""

    word: ClassVar[str] = "collective"
    kind: str = part("text", ARGUMENT)
    group: str = part("word", ARGUMENT, role="group")
    read: Region | None = part("region", KEYWORD, None, role="reads")
    write: Region | None = part("region", KEYWORD, None, role="writes")
    reduction: str = part("text", KEYWORD, "sum")
    root: Expr = part("expr", KEYWORD, ZERO)
    work: Work = part("work", KEYWORD, Work())
    source: Place | None = _source()


@dataclass(frozen=True)
class Start:
    """The head of a collective in the stream of a rank: hold issue while the kernel of ``transport`` starts.

    What the kernel has been asked for is ``collective`` over ``ranks`` ranks with a buffer of ``work.bytes``.
    ``read`` is what must be there before: in a program of several kernels this one begins when it is.
    """

    word: ClassVar[str] = "start"
    transport: str = part("word", ARGUMENT, role="transport")
    collective: str = part("text", ARGUMENT)
    ranks: int = part("literal")
    read: Region | None = part("region", KEYWORD, None, role="reads")
    work: Work = part("work", KEYWORD, Work())
    source: Place | None = _source()


@dataclass(frozen=True)
class Free:
    """The named handles end here. For a slot whose last name this is, the credit returns when its users have
    finished.
    """

    word: ClassVar[str] = "free"
    names: tuple[str, ...] = part("words", ARGUMENT)
    source: Place | None = _source()


class Flow:
    """A name that a loop carries or a branch merges: it means one of two ``values``, the first when the loop
    begins or the condition holds."""

    name: str

    @property
    def values(self) -> tuple[Any, Any]:
        _, first, second = vars(self).values()
        return first, second


@dataclass(frozen=True)
class CarryTile(Flow):
    """In a loop, ``name`` means ``init`` in the first iteration and what ``next`` meant at the end of the one
    before.
    """

    name: str
    init: str
    next: str


@dataclass(frozen=True)
class CarryInt(Flow):
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
    start: Expr = part("expr", HIDDEN, decides=True)
    stop: Expr = part("expr", HIDDEN, decides=True)
    body: tuple[Statement, ...] = part("body", HIDDEN)
    step: Expr = part("expr", HIDDEN, ONE, decides=True)
    carries: tuple[CarryTile | CarryInt, ...] = ()
    frees: tuple[str, ...] = ()
    source: Place | None = _source()


@dataclass(frozen=True)
class MergeTile(Flow):
    """After an ``If``, ``name`` means ``then`` or ``orelse``, whichever branch was taken."""

    name: str
    then: str
    orelse: str


@dataclass(frozen=True)
class MergeInt(Flow):
    name: str
    then: Expr
    orelse: Expr


@dataclass(frozen=True)
class If:
    """``body`` where ``condition`` is not 0, else ``orelse``; each unit decides for itself."""

    condition: Expr = part("expr", HIDDEN, decides=True)
    body: tuple[Statement, ...] = ()
    orelse: tuple[Statement, ...] = ()
    merges: tuple[MergeTile | MergeInt, ...] = ()
    source: Place | None = _source()


Command = Union[Compute, Send, Receive, ReceiveAny, ReadScalar, Signal, Wait, Collective, Start, Free]  # noqa: UP007
Statement = Union[Command, Loop, If]  # noqa: UP007
COMMANDS: dict[str, type] = {kind.word: kind for kind in Command.__args__}  # type: ignore[attr-defined]


def statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement, outer before inner, in text order."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)
        elif isinstance(statement, If):
            yield from statements(statement.body)
            yield from statements(statement.orelse)


def rewritten(
    body: tuple[Statement, ...], change: Callable[[Statement], Statement | None]
) -> tuple[Statement, ...]:
    """Return the statements with each one changed, inner ones first; None leaves one out."""
    made = []
    for statement in body:
        inner: dict[str, Any] = {
            name: rewritten(getattr(statement, name), change)
            for name in ("body", "orelse")
            if hasattr(statement, name)
        }
        new = change(replace(statement, **inner) if inner else statement)
        if new is not None:
            made.append(new)
    return tuple(made)


def engine_of(command: Compute) -> str:
    """Return the engine of a command: its kind, and of copies the name that they give (``dma.lsu``)."""
    return f"{command.engine}.{command.by}" if command.engine == "dma" and command.by else command.engine


reads_of: Callable[[Statement], tuple[Region, ...]] = having("reads")
"""The regions a command reads, in order; an accumulating operation lists its destination itself."""
regions_of: Callable[[Statement], tuple[Region, ...]] = having("reads", "writes")
"""The regions a command reads, then the one that it writes."""
tiles_bound: Callable[[Statement], tuple[str, ...]] = having("binds")
"""The names that a command binds to a message."""
integers_bound: Callable[[Statement], tuple[str, ...]] = having("counts")
"""The names of the integers that a command finds out."""
_writes = having("writes")


def write_of(statement: Statement) -> Region | None:
    """Return the region a command writes, if any."""
    found = _writes(statement)
    return found[0] if found else None


def tile_flows(statement: Statement) -> list[Flow]:
    """Return the tiles that a loop carries or a branch merges."""
    return [f for f in _flows(statement) if isinstance(f, (CarryTile, MergeTile))]


def int_flows(statement: Statement) -> list[Flow]:
    """Return the integers that a loop carries or a branch merges."""
    return [f for f in _flows(statement) if isinstance(f, (CarryInt, MergeInt))]


def _flows(statement: Statement) -> tuple[Flow, ...]:
    if isinstance(statement, Loop):
        return statement.carries
    return statement.merges if isinstance(statement, If) else ()


def binds(statement: Statement) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of tiles and of integers that are known after a statement, not counting inner
    scopes."""
    if not isinstance(statement, (Loop, If)):
        return tiles_bound(statement), integers_bound(statement)
    return tuple(f.name for f in tile_flows(statement)), tuple(f.name for f in int_flows(statement))
