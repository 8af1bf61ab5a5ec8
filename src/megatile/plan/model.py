"""The Plan as data. This page is the definition of what a Plan means; the engine and all checks follow it.

Units and streams
-----------------
A plan runs on ``units`` units, numbered from 0; unit ``u`` is hardware unit ``place(u)`` of the machine's
``scale``. Every unit belongs to exactly one ``Stream``: a list of statements in which the unit's own number
is the symbol ``unit``. Units that do the same share a stream, so a ring of 100 000 units is one stream.
In a ``partial`` plan, which has no further levels, units may have no stream: they are not of this launch, and
only installed channels (below) reach them.

Levels
------
``scale``, ``grid`` and ``place`` are the plan's first level; its name is that of the scale. ``levels`` are
further ones: the blocks of a launch, the warp groups in them. Streams, tiles, channels, flags and groups
belong to a level (None: the first), and what is said here of units holds for the *instances* of their level.
A level with a ``parent`` has ``grid`` instances in each instance of the parent: instance number =
parent's number * prod(grid) + index, the first extent of the grid varying fastest in the index; the parent's
number is ``unit // prod(grid)``. In a stream ``unit`` is the instance's number in the stream's level. A level
either has no streams or one for every instance (the only level of a plan has them).

A stream may name what belongs to its own level or to one above it, which then means the copy of the instance
it belongs to: owner and source expressions are evaluated on that instance's number. ``Signal.to``,
``Send.to`` and ``Region.at`` count the instances (or owners) of the flag's, channel's or tile's level,
whatever level that is; a group is used by streams of its own level. What an instance does is ordered with its
parent and its siblings as between any units (below): a parent's stream runs beside its children.

*Residency.* Without ``slots`` all instances are there from the beginning, each on hardware unit
``place(index)`` of the level's scale, counted below the parent's hardware unit if there is a parent:
parent's place * (units of the scale per unit of the parent's scale) + place(index). With ``slots`` a hardware
unit holds that many instances at a time. They are dispatched by number to the first slot that becomes free
(ties: lowest slot, then lowest hardware unit: every unit gets one before any gets two) among the hardware
units below the parent's, or all of the machine, and begin there after ``begin_ps`` of the scale. A slot is
free again when all commands of the instance, and of the instances below it, have finished. Instances
take slot storage: a memory must hold slots times what an instance places there (tiles that only one stream
of the level names are its instances' alone). A tile of a level with slots is local, belongs to its
instance and begins undefined. Waiting for an instance that is not resident and cannot become so is a
deadlock. The kernel of a library takes a compute unit (a unit of scale ``block``) for each of its channels,
those with the highest numbers of its device, from its ``Start`` to the last statement beside it that names
its transport, or to the next ``Start``: slots there that are or become free are not taken before it has
ended, and instances that are there stay. One unit is left to others.

*Reach.* What is sent, signalled, put or met goes to the hardware unit at which an instance is *reached*. One
reaches the instances that one is in where they are; every other one below its parent: at ``place(index)``, or
in a level with slots at the first hardware unit that it may get (which one is not known yet). Where both
have different scales, one's own scale counts: the unit that contains the other, and of several that it
contains one's own or else the first. Instances on one hardware unit share its DMA, tensor and vector engine.
An engine, or a memory that is not divided among them, of a hardware unit above others is shared by all of
these, whoever uses it.

Tiles
-----
A ``Tile`` is storage: ``shape`` elements in memory layer ``memory``, once per *owner*. By default each unit
owns one (``owner`` is ``unit``, ``owners`` is the number of units); a tile in a memory that several units
share has ``owner = unit // sharers``. A ``Region`` is a block of a tile; it means the unit's own copy unless
``at`` names another owner (a put or a get). Indices count elements per dimension; an empty ``start`` is the
whole tile.

*Spread.* A tile with ``over``, a level below its own, lies in the memories of the hardware units on which the
instances of that level begin: cut into blocks of ``block`` elements per dimension, which in row-major order
are dealt in runs, as even as whole blocks allow: block b of n to entry ``b * m // n`` of the m places (of a
level with slots: as many of its hardware units as it has instances, or all). It stays one tile for data and
order. A copy begins (or ends) where the block of its region lies, and passes the route between there and its
unit. Where a region has several blocks (so many as its extents, if they are constants, have whole blocks),
it is one of them: in row-major order the one half-way round from the unit's number, so that units take
different ones. Regions with ``at`` are where their owner is.

A tile has ``versions`` >= 1 buffers. A command with ``fresh=True`` begins a *new version* of the tile it
writes: the tile's name means that version from then on, and version ``v`` lies in buffer ``v % versions``, so
it must wait for the accesses to version ``v - versions`` (that is all that software pipelining is). Without
``fresh`` the current version is written in place. A tile begins with version 0 (the given data for inputs,
undefined otherwise), so the first fresh command makes version 1. Using a version after version + versions has
begun is an error.

Names
-----
Within a stream a name of a tile means: a declared tile (its current version), or a handle bound by a
statement: the slot of a ``Receive``, a loop's carried tile, an ``If``'s merged tile. Carrying or merging a
declared tile captures the version current at that moment. Names bound in a loop body or branch end with it;
carried and merged names live on in the enclosing body. Integer names (loop indices, carried and merged
integers, ``ReadScalar`` results) work likewise.

Order in a unit
---------------
A unit *issues* its commands in order. Engines then work asynchronously, each through its own queue in issue
order. A command starts when (1) it has been issued, (2) its engine has finished the command before it, and
(3) its hazards are gone: earlier writers of anything it reads (RAW), earlier readers and writers of anything
it writes (WAR, WAW) have finished. Regions conflict when they overlap in the same buffer of the same owner. A
command does not conflict with itself, and a region without elements with nothing. A unit's own copy is the
same whether ``at`` names it or not. Scratch tiles whose fixed offsets make them lie over each other (directly
or through others) conflict as a whole; their data stay their own (values never depend on addresses alone).

What holds up *issue* (the unit's clock), and nothing else does:
  * ``Send`` until the queue has a free slot (credit);
  * ``Receive``/``ReceiveAny`` until the message at the head of the queue has arrived;
  * ``ReadScalar`` until its element is written; its value is then known;
  * ``Wait`` until the flag has reached the value;
  * ``Start`` until the kernel of its transport has started;
  * ``Collective`` until it has completed for this unit.
``Loop``, ``If``, ``Free`` and ``Signal`` cost nothing by themselves.

Channels
--------
A ``Channel`` is a family of bounded queues, one for each (receiving unit, member), ``members`` queues per
unit. Exactly one unit feeds a queue: ``source(unit, member)`` (-1: nobody). A queue holds at most ``slots``
messages of at most ``slot_bytes`` bytes in the receiver's ``memory``. ``Send`` names the receiving unit
``to`` and the ``member`` there. Directions are members with names: with members (E, W) in a ring, "send east"
is to=(unit+1)%n, member=W, and "receive from the west" is member=W. A sent message leaves when its source
region is ready (RAW; the region is then read until the message has left) and earlier messages of the same
queue have left. Messages of a queue arrive in order; message k lies in slot k % slots, so its send waits
until message k - slots has been freed. A received message stays in its slot: the bound name *is* the slot.
Each name bound to it holds it; when no name holds it any more (``Free``, rebinding, end of scope or of the
stream) and every command issued on it has finished, the credit goes back to the sender.
``Receive(into=region)`` copies the message out with the ``dma`` engine and frees the slot after the copy.
The two ends of an ``installed`` channel may be in different launches: what is sent or received there without
a partner in the plan is allowed. Its queues belong to the machine, each to a hardware unit, the channel's
name and the member's name; their messages, credits and counts go on from one launch to the next.
``ReceiveAny`` takes a message from whichever of the members has one. Data execution without a timed order
tries the members in turn, starting after the one taken last; the timed run takes the earliest arrival (ties:
lowest member).

Between units
-------------
Only tiles with several sharers, and tiles that some region of the plan names with ``at``, are seen by more
than one unit (the owner's own accesses to them included). Accesses to them by different units are ordered by:
message (send before its receive), ``Signal``/``Wait`` (the k-th unit of count before the wait that needs it),
``Collective`` (everything before it on every member before everything after it). For this to hold, ``Send``,
``Signal`` and ``Collective`` take effect only after the unit's earlier accesses to such storage have
finished; a ``Send`` by the kernel of a library waits for what it reads alone. Two unordered accesses that
overlap, one of them a write, are a race.

Transports
----------
A ``Transport`` says how messages travel: by the ``kernel`` of a library, by a ``copy_engine``, by loads and
stores of blocks (``lsu``, ``tma``), by a network card (``nic``), through a queue in a memory (``channel``),
or through a ``switch`` that reduces. A channel or group may name one; without it the machine's engines
nearest to the unit do the work. ``Start`` is the head of a collective in a unit's stream: it holds issue
while the kernel of its transport starts. A plan may *be* the kernel of a transport (``Plan.kernel``): then
this kernel also copies and reduces, and the library's launch takes the place of the machine's control path.
In other plans it does the commands that say so (``by``).

Groups and collectives
----------------------
A ``Group`` divides the units by ``key(unit)``: equal keys are one group, key -1 takes no part. ``Collective``
"barrier" moves no data; "all_reduce" and "broadcast" are done by the network itself (in-network reduction)
from ``read`` to ``write``.

Lengths, trip counts, peers and indices may use runtime integers from ``ReadScalar`` (0 <= value <= bound).
One that combines is an atomic: those of one element do not race, each is ordered after the one before, and so
is what its unit does next. Data execution lets units come in their order; the timed run takes its values.

Time
----
Whole picoseconds; what things cost is in ``timing/``. A unit begins to issue at ``start_ps``. A command on a
compute engine takes ``compute_ps``, and first a turn on the engine where several units share it.

*Transfers* are copies (``Compute`` on ``dma``, ``Receive(into=)``; queue ``dma.0``, or one of each engine
that copies are done ``by``) and messages (the queue of their virtual channel). The path of a copy begins
where its first operand lies (its destination, if it has none), and has start-up, latency and bandwidth of its
engine. Where units share a DMA engine, a transfer takes a turn on its virtual channel for startup + jitter +
``held_ps``. It then starts; after startup and jitter its head is at the first stage of its path. A path with
a granule and a resource cuts it into pieces (``Path.pieces``), whoever else uses that path; each piece begins
``occupied_ps`` after the one before and goes its own way: at a stage with a resource its head waits for a
turn, the stage is busy for the piece's bytes, the head goes on after the latency; the tail has passed when
the DMA engine and every stage have let it through. A transfer has *arrived* when the tails of all pieces
have. Its source is free, and so is its engine, when all pieces have left: a piece has left ``occupied_ps``
after its head was at the first stage, later by what it waited for its first turn, and not before that turn.

*Caches.* A copy between a unit and a memory that it reaches by itself (no other place is named) passes the
caches in front of the memory that stand above the unit's own level of the hardware; the nearest one is a
stage of its path instead of the memory. Caches hold *blocks* of tiles (``timing.caches.brick``; one per
buffer and owner), as many as the machine file says; the one used longest ago makes room. Blocks of tiles
with a role stay from one launch to the next, which finds them if it means the same memory (name or address,
shape, owners and places) and cuts it into blocks alike; those of scratch tiles are each launch's own. When
the head of a
copy that reads is at the cache, it first looks up its blocks in row-major order, in the order of requests
(below). A block that is there is a hit; one that is not is looked up in the cache behind and so on, and is
new in every cache that missed it. Each layer behind a cache that misses then serves the bytes of the missed
blocks, at the rate of the fill: all ask for a turn at once, the head goes on to the turn at the cache when
the last turn has come and the latencies of these layers are over, and the blocks are filled, and the copy's
tail has passed, when the last layer has served as well. The last of these turns is the copy's first turn, by
which it leaves; without a miss it is that at the cache. A hit on a block that is not filled yet lets the
tail wait for it. A copy that writes looks up its blocks when its head asks for the turn at the cache. A
cache that writes back takes them, new or not, and they are changed; one that writes through takes only those
that are there, and the layer behind it serves the bytes of the copy at once, before whose end (and latency)
the tail has not passed. What makes room and was changed is written to the layer behind by a turn of its own;
the tail of a copy that writes has not passed before the end of those that make room for it, and what is
changed at the end of a launch stays in the cache. Messages in their slots are always in the cache.

A copy ends when it arrives, a send when it has left. A credit takes ``credit_ps`` from the slot being free, a
signal ``message_ps`` from taking effect, a collective ``collective_ps`` from the last member taking part
(after its hazards and its accesses to storage that others see). The plan ends with the last end of a command
or stream, arrival of a message or signal, and engine becoming free; credits on their way do not count.

*Launches.* A launch is submitted to a machine at some time; ``start_ps`` counts from there. It holds the
hardware units on which it has streams, each from its begin there until all its commands have finished;
launches on the same hardware unit (or one within the other) take it in the order in which they were
submitted, so a unit begins at its ``start_ps`` or when the last of those before it ends there. A launch with
levels holds the hardware units of the instances without a parent that have a stream or others below; if
these have slots, every slot from when
it is free until none of its instances can take it any more. Launches share what the machine has: links,
memories, caches, engines above their units, installed channels and flags; tiles that several units see are
ordered within a launch only, and all other flags are each launch's own and begin at 0. A launch ends when
everything of it has ended, as above.

*Order.* Within one picosecond come first all ends, arrivals, credits and the issue they allow; then instances
take the slots that have become free; then receive-from-any decides; then requests for turns, one at a time,
and what a turn brings about in the same picosecond comes before the next. Requests go by (flow, number,
stage): messages of a queue are a flow (channels in order, then receiving unit, then member), then come the
copies of each unit (level by level), then its commands on shared compute engines; each flow is numbered from
0 in issue order (a unit's copies and such commands together), pieces in order within, and a turn on the DMA
engine before the stages. Those of an earlier launch come first. Jitter depends on flow and number too;
messages of installed queues are numbered over all launches.
A resource serves first come, first served, as many at a time as it is wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from math import prod
from typing import Any

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.errors import MegatileError, did_you_mean, how_to_give
from megatile.core.expr import ZERO, Expr, constant, expr, simplify, unit
from megatile.plan.spec import ALWAYS, ARGUMENT, HIDDEN, KEYWORD, part
from megatile.plan.statements import *  # noqa: F403
from megatile.plan.statements import Start, Statement, Work, __all__ as _STATEMENTS, statements

__all__ = ["Channel", "Flag", "Group", "Level", "Plan", "PlanError", "Stream", "Tile", "Transport"]
__all__ += _STATEMENTS

ENGINES = ("dma", "tensor", "vector", "channel", "control")
ROLES = ("local", "input", "output", "inout")
FORMS: dict[str, Callable[[Any], Any]] = {}
"""How a Plan is written and read; ``text.py`` and ``serial.py`` fill it in."""


class PlanError(MegatileError, ValueError):
    """A plan that cannot be right; names the command and its source line."""


@dataclass(frozen=True)
class Level:
    """Instances beside those of the plan's first level. See "Levels" above."""

    name: str
    scale: str = part("text")
    grid: tuple[int, ...] = part("literal")
    place: Expr = part("expr", KEYWORD, unit)
    parent: str | None = part("text", KEYWORD, None)
    slots: int | None = part("literal", KEYWORD, None)

    @property
    def count(self) -> int:
        """Instances in each instance of the parent."""
        return prod(self.grid)


@dataclass(frozen=True)
class Tile:
    """Storage: ``shape`` elements in ``memory``, one per owner. See "Tiles" above.

    ``offset`` fixes the byte offset in the memory; without it the place is left to the machine.
    """

    name: str
    shape: tuple[int, ...] = part("literal", ARGUMENT, order=1)
    dtype: str = part("word", ARGUMENT)
    memory: str = part("text")
    versions: int = part("literal", KEYWORD, 1)
    role: str = part("text", KEYWORD, "local")
    owner: Expr = part("expr", KEYWORD, unit)
    owners: int | None = part("literal", KEYWORD, None)
    offset: int | None = part("literal", KEYWORD, None)
    level: str | None = part("text", KEYWORD, None)
    over: str | None = part("text", KEYWORD, None)
    block: tuple[int, ...] = part("literal", KEYWORD, ())

    @property
    def block_grid(self) -> tuple[int, ...]:
        """Blocks of a spread tile per dimension; one where it has no elements."""
        return tuple(max(1, -(-extent // size)) for extent, size in zip(self.shape, self.block, strict=True))

    def block_of(self, region: Region) -> Expr:  # noqa: F405
        """Return the number, in row-major order, of the block of a spread tile where copies of a region
        begin."""
        start = region.start or (ZERO,) * len(self.shape)
        known = [constant(e) for e in region.shape] if region.shape else self.shape
        inside = [max(1, (n or 1) // size) for n, size in zip(known, self.block, strict=True)]
        covered = prod(inside)
        turn, number = (unit + covered // 2) % covered if covered > 1 else ZERO, ZERO
        for axis, (at, size, count) in enumerate(zip(start, self.block, self.block_grid, strict=True)):
            step = turn // prod(inside[axis + 1 :]) % inside[axis] if inside[axis] > 1 else ZERO
            number = number * count + at // size + step
        return simplify(number)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one version."""
        return self.elements * itemsize(self.dtype)

    @property
    def plain(self) -> bool:
        """Whether it is scratch of its unit, at no fixed place."""
        return (self.role, self.owner, self.owners, self.offset) == ("local", unit, None, None)

    @property
    def shared(self) -> bool:
        """Whether several units may own the same copy."""
        return self.owner is not unit and self.owner != unit


TRANSPORTS = {
    "kernel": "library kernel",
    "copy_engine": "copy engines",
    "lsu": "peer stores by SMs",
    "tma": "bulk copies by SMs",
    "nic": "network cards",
    "channel": "queues in memory",
    "switch": "in-switch reduction",
}
"""The kinds of transports, and what the time of one is called where no library is named."""

LIBRARY_NAMES = {
    "nccl": "NCCL", "rccl": "RCCL", "custom": "vLLM", "trtllm": "TensorRT-LLM", "deepep": "DeepEP",
    "own": "hypothetical",
}  # fmt: skip
ALGORITHM_NAMES = {
    "halving_doubling": "halving-doubling", "one_shot": "one-shot", "two_shot": "two-shot",
    "dispatch_low_latency": "low-latency dispatch",
    "combine_low_latency": "low-latency combine",
}  # fmt: skip
"""How people write the names of algorithms, other than with blanks."""
NCCL_NAMES = {
    "rail_rings": "ring", "node_tree": "tree", "in_network": "NVLS", "in_network_tree": "NVLSTree",
}  # fmt: skip
"""What NCCL calls its algorithms (``NCCL_ALGO``)."""


@dataclass(frozen=True)
class Transport:
    """How messages travel. See "Transports" above.

    ``library`` (``nccl``, ``rccl``), ``algorithm`` (``ring``) and ``protocol`` (``LL``, ``LL128``,
    ``Simple``, ``NVLS``) name whose kernel it is; ``channels`` how many of its channels a library takes for
    the size (None: all it has); ``registered`` whether its buffers are registered with the library,
    ``captured`` whether a graph replays it, so that the host does not launch it;
    ``per_node`` how many ranks of the group are in each of its nodes (0: they fill their nodes) and ``links``
    how many links each has to the others, where links are listed one by one (0: as the first ranks have);
    ``token`` the bytes that DeepEP sends at a time, and ``experts`` among how many (in low-latency mode).
    """

    kind: str = part("text", ARGUMENT)
    library: str = part("text", KEYWORD, "")
    algorithm: str = part("text", KEYWORD, "")
    protocol: str = part("text", KEYWORD, "")
    channels: float | None = part("literal", KEYWORD, None)
    pace: float = part("literal", KEYWORD, 1.0)
    registered: bool = part("literal", KEYWORD, False)
    captured: bool = part("literal", KEYWORD, False)
    per_node: int = part("literal", KEYWORD, 0)
    links: int = part("literal", KEYWORD, 0)
    token: int = part("literal", KEYWORD, 0)
    experts: int = part("literal", KEYWORD, 0)
    name: str = ""

    def model_name(self) -> str:
        """Return the name of the timing model for people: ``NCCL ring, LL``, ``copy engines``."""
        names = ALGORITHM_NAMES | (NCCL_NAMES if self.library == "nccl" else {})
        spoken = names.get(self.algorithm, self.algorithm.replace("_", " "))
        words = [LIBRARY_NAMES.get(self.library, self.library), spoken]
        named = " ".join(word for word in words if word) or TRANSPORTS.get(self.kind, self.kind)
        return named if spoken.startswith(self.protocol) else f"{named}, {self.protocol}"


@dataclass(frozen=True)
class Channel:
    """A family of bounded queues at (receiving unit, member). See "Channels" above.

    ``source`` is an expression over ``unit`` (the receiver) and ``member``. ``names`` gives members their
    directions. ``offset`` fixes where the receive ranges lie: member m of every unit has ``offset + m * slots
    * slot_bytes``. A returned credit is a message of ``credit_bytes`` (the machine's if not said); on shared
    links messages are cut into chunks of ``chunk_bytes``, between which those of others may go.
    """

    name: str
    members: int = part("literal", KEYWORD, omit=1, order=1)
    source: Expr = part("expr")
    slots: int = part("literal")
    slot_bytes: int = part("literal")
    memory: str = part("text")
    names: tuple[str, ...] = part("texts", KEYWORD, (), order=1)
    offset: int | None = part("literal", KEYWORD, None, order=1)
    credit_bytes: int | None = part("literal", KEYWORD, None, order=1)
    chunk_bytes: int | None = part("literal", KEYWORD, None, order=1)
    level: str | None = part("text", KEYWORD, None, order=1)
    installed: bool = part("literal", KEYWORD, False, order=1)
    transport: str | None = part("text", KEYWORD, None, order=1)

    def label(self, index: int) -> str:
        return f"{self.name}.{self.names[index]}" if index < len(self.names) else f"{self.name}[{index}]"


@dataclass(frozen=True)
class Flag:
    """``members`` counters per unit, from 0, that ``Signal`` counts up and ``Wait`` waits for. Those of an
    ``installed`` flag (of the first level) belong to the machine: they count on from launch to launch."""

    name: str
    members: int = part("literal", KEYWORD, 1, omit=ALWAYS)
    level: str | None = part("text", KEYWORD, None)
    installed: bool = part("literal", KEYWORD, False)


@dataclass(frozen=True)
class Group:
    """Units with equal ``key`` form one group; key -1 takes no part."""

    name: str
    key: Expr = part("expr", ARGUMENT, ZERO)
    level: str | None = part("text", KEYWORD, None)
    transport: str | None = part("text", KEYWORD, None)


DECLARED: dict[str, type] = {
    "level": Level, "transport": Transport, "tile": Tile, "channel": Channel, "flag": Flag, "group": Group,
}  # fmt: skip
"""What a plan declares by name, as its text and its fields (``tiles``, ...) call it."""


@dataclass(frozen=True)
class Stream:
    """Statements shared by the units of ``units``: arithmetic runs (start, stop, step)."""

    units: tuple[tuple[int, int, int], ...] = part("literals", ARGUMENT)
    body: tuple[Statement, ...] = part("body", HIDDEN)
    level: str | None = part("text", KEYWORD, None)

    def unit_count(self) -> int:
        return sum(len(range(*run)) for run in self.units)

    def unit_numbers(self) -> Iterator[int]:
        for run in self.units:
            yield from range(*run)


def runs(units: Sequence[int] | range) -> tuple[tuple[int, int, int], ...]:
    """Return unit numbers as arithmetic runs (start, stop, step)."""
    if isinstance(units, range):
        return ((units.start, units.stop, units.step),) if len(units) else ()
    numbers = sorted(int(u) for u in units)
    result: list[tuple[int, int, int]] = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        result.append((numbers[at], numbers[end - 1] + 1, step))
        at = end
    return tuple(result)


@dataclass(frozen=True, repr=False)
class Plan:
    """See the module's text. ``grid``: the extents of the unit's coordinates, the first varying fastest."""

    name: str = part("text", ARGUMENT)
    scale: str = part("text")
    grid: tuple[int, ...] = part("literal")
    tiles: tuple[Tile, ...] = ()
    channels: tuple[Channel, ...] = ()
    flags: tuple[Flag, ...] = ()
    groups: tuple[Group, ...] = ()
    streams: tuple[Stream, ...] = ()
    place: Expr = part("expr", KEYWORD, unit)
    levels: tuple[Level, ...] = ()
    partial: bool = part("literal", KEYWORD, False)
    transports: tuple[Transport, ...] = ()
    kernel: str | None = part("text", KEYWORD, None)
    """The transport whose kernel the plan is."""

    def __repr__(self) -> str:
        return f"Plan({self.name}: {self.units} {self.scale}s, {len(self.streams)} streams)"

    @property
    def units(self) -> int:
        """Units of the first level."""
        return prod(self.grid)

    @cached_property
    def cached(self) -> dict[Any, Any]:
        """What was found out about the plan, which never changes."""
        return {}

    @cached_property
    def bodies(self) -> tuple[tuple[Statement, ...], ...]:
        """The statements of every stream, outer before inner, in text order."""
        return tuple(tuple(statements(stream.body)) for stream in self.streams)

    @cached_property
    def kinds(self) -> frozenset[type]:
        """The kinds of statements that its streams have."""
        return frozenset(type(statement) for body in self.bodies for statement in body)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def first(self) -> Level:
        return Level(self.scale, self.scale, self.grid, self.place)

    @cached_property
    def all_levels(self) -> tuple[Level, ...]:
        return (self.first, *self.levels)

    def level(self, name: str | None = None) -> Level:
        """Return a level by name; None is the first."""
        return self.first if name is None else self._named("level", name)

    @cached_property
    def _above(self) -> dict[str, dict[str, int]]:
        """For each level, how many of its instances are in one of each level above it (and of itself)."""
        found: dict[str, dict[str, int]] = {}
        for level in self.all_levels:
            above = found.get(level.parent, {}) if level.parent is not None else {}
            found[level.name] = {level.name: 1} | {name: per * level.count for name, per in above.items()}
        return found

    def per(self, level: str | None, above: str | None) -> int | None:
        """Return instances of a level in one of the level ``above`` (1: itself, None: it is not above):
        instance ``u`` belongs to instance ``u // per`` there."""
        return self._above[self.level(level).name].get(self.level(above).name)

    @cached_in_owner
    def instances(self, level: str | None = None) -> int:
        """Return how many instances a level has in all."""
        found = self.level(level)
        return found.count * (self.instances(found.parent) if found.parent is not None else 1)

    def pace_lines(self) -> list[str]:
        """Return what a summary says of messages that were scaled to the time of a library's rule."""
        return [
            f"{t.model_name()}: the Plan's message times are multiplied by {t.pace:.3g} to add up to the "
            "predicted time: trust the total, not single messages"
            for t in self.transports
            if t.pace != 1
        ]

    def spread_lines(self) -> list[str]:
        """Return what a summary says of tiles that lie in blocks with the instances of a level."""
        found: dict[str, list[str]] = {}
        for tile in self.tiles:
            if tile.over is not None:
                blocks = "×".join(map(str, tile.block))
                found.setdefault(tile.over, []).append(f"{tile.name} ({blocks})")
        return [
            f"spread over {self.level(over).count} × {over}, in blocks (others than one's own come over the "
            f"network): {', '.join(names)}"
            for over, names in found.items()
        ]

    def part(self, units: Iterable[int]) -> Plan:
        """Return the plan for some of its units alone: the others are in other launches, which its channels
        (now installed ones) reach."""
        chosen, streams = set(units), []
        for stream in self.streams:
            own = [u for u in stream.unit_numbers() if u in chosen or stream.level is not None]
            streams += [replace(stream, units=runs(own))] if own else []
        channels = tuple(replace(channel, installed=True) for channel in self.channels)
        return replace(self, streams=tuple(streams), channels=channels, partial=True)

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Any]:
        tiles: dict[tuple[str, str], Any] = {("tile", tile.name): tile for tile in self.tiles}
        tiles |= {("level", level.name): level for level in self.all_levels}
        tiles |= {("transport", transport.name): transport for transport in self.transports}
        return tiles | {("channel", channel.name): channel for channel in self.channels}

    def transport(self, name: str) -> Transport:
        return self._named("transport", name)

    def sent_by_kernel(self, channel: str) -> bool:
        """Return whether the kernel of a library sends the messages of a channel."""
        transport = self.channel(channel).transport
        return transport is not None and self.transport(transport).kind == "kernel"

    def tile(self, name: str) -> Tile:
        return self._named("tile", name)

    def channel(self, name: str) -> Channel:
        return self._named("channel", name)

    def _named(self, what: str, name: str) -> Any:
        found = self._by_name.get((what, name))
        if found is None:
            names = [known for kind, known in self._by_name if kind == what]
            advice = did_you_mean(name, names, what=f"{what}s")
            raise PlanError(f"there is no {what} '{name}' in the plan", advice=advice)
        return found

    def owners(self, tile: Tile) -> int:
        """Return how many copies of a tile there are."""
        return self.instances(tile.level) if tile.owners is None else tile.owners

    def __str__(self) -> str:
        return str(FORMS["to_text"](self))

    def _repr_html_(self) -> str:
        head = f"<summary>Plan {escape(self.name)}: {self.units} units</summary>"
        return f"<details>{head}<pre>{escape(str(self))}</pre></details>"

    def to_json(self) -> str:
        return str(FORMS["to_json"](self))

    @staticmethod
    def from_json(text: str) -> Plan:
        plan: Plan = FORMS["from_json"](text)
        return plan

    @staticmethod
    def from_text(text: str) -> Plan:
        plan: Plan = FORMS["from_text"](text)
        return plan

    @property
    def digest(self) -> str:
        """A hash of the plan that is the same in every process and does not depend on source lines."""
        return str(FORMS["digest"](self))


def with_transport(plan: Plan, transport: Transport, operation: str, ranks: int, nbytes: int | Expr) -> Plan:
    """Return the plan as the kernel of a transport that does ``operation`` on a buffer of ``nbytes``: its
    channels and groups name the transport, and every stream begins with a ``Start``."""
    name = transport.name or transport.library or transport.kind
    head = Start(name, operation, ranks, work=Work(bytes=expr(nbytes)))
    channels = tuple(replace(channel, transport=name) for channel in plan.channels)
    groups = tuple(replace(group, transport=name) for group in plan.groups)
    streams = tuple(replace(stream, body=(head, *stream.body)) for stream in plan.streams)
    declared = (replace(transport, name=name),)
    return replace(plan, channels=channels, groups=groups, streams=streams, transports=declared, kernel=name)


def require_plan(value: Any, word: str) -> None:
    """Raise one clear sentence where something else is given for a Plan."""
    if isinstance(value, Plan):
        return
    name = getattr(value, "__name__", None) or getattr(value, "name", None)
    if hasattr(value, "tensors") or hasattr(value, "params"):
        raise PlanError(
            f"mt.{word} takes a Plan, and '{name}' is a tile program",
            advice=f"mt.lower({name}, machine=...).plan is its Plan",
        )
    advice = how_to_give(value, "mt.PlanBuilder makes one")
    raise PlanError(f"mt.{word} takes a Plan, not {type(value).__name__}", advice=advice)
