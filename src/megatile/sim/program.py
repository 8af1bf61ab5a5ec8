"""From rows to timed operations: which engine, how long, over which way, touching which blocks.

The operations of a unit are plain tuples, made once and run by the evaluators. What the units of a
cohort have in common is worked out once per row.

    RUN      (engine, busy_ps, latency_ps, row), read blocks, write blocks
    SEND     (engine, queue, slots, busy_ps, latency_ps, link, bytes), message number, read block, row
    RECEIVE  (queue, link), message number, slot block, row
    RELEASE  (queue, slot block, credit_ps, link), message number, row
    TAKE     (queue, engine, busy_ps, latency_ps, credit_ps, link), message number, write block, row
    COPY     (engine, path, bytes, flow), number, read blocks, write blocks, row: over a contended way
    GENERAL  an `Operation`: everything that is rarer (shared engines, puts and gets, signals, ...)

Only where times are not recorded:

    LOAD     (engine, path, bytes, flow, `OnlyStage`), the rest like COPY: nothing comes any more that others
             can see but such copies, so that the unit may stand still until its turn has come
    PUT      (engine, busy_ps, latency_ps, row), read and write `Block`s: a copy over a free way that touches
             storage which others see too
    SIGNAL   (flag, delay_ps), amount    } flags that one unit alone raises
    WAIT     flag, value, row            }
    MEET     meeting, units, delay_ps, row: a barrier
    CONSUME  (queue, engine, busy_ps, credit_ps, slot block, link, row), message number, read blocks, write
             blocks: RECEIVE, RUN and RELEASE of one message in one operation
    SHIP     (engine, queue, slots, path, 0, link, bytes), the rest like SEND: a send over a contended way
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megatile.plan import model as pm
from megatile.sim.regions import OWNER_SHIFT, Block, Regions
from megatile.sim.rows import Access, Odd, Row
from megatile.sim.storage import Storages
from megatile.timing.fabric import Path
from megatile.timing.resources import Resources

RUN, SEND, RECEIVE, RELEASE, TAKE, GENERAL, COPY, CONSUME, LOAD, PUT, SIGNAL, WAIT, MEET, SHIP = range(14)


@dataclass(frozen=True, eq=False)
class Link:
    """One queue with everything that its messages need to know."""

    channel: pm.Channel
    queue: int
    """Number among all queues of the plan; breaks ties between messages."""
    sender: int
    receiver: int
    member: int
    engine: int
    """The virtual channel of the sender's DMA engine."""
    credit_ps: int

    @property
    def label(self) -> str:
        return self.channel.label(self.member)


@dataclass(eq=False, slots=True)
class Operation:
    """A command outside the fast kinds; ``kind`` is one of those that `GeneralRules` knows."""

    kind: str
    row: Row
    unit: int
    engine: int = 0
    busy_ps: int = 0
    latency_ps: int = 0
    reads: tuple[Block, ...] = ()
    writes: tuple[Block, ...] = ()
    shared: bool = False
    link: Any = None
    number: int = 0
    nbytes: int = 0
    path: Path | None = None
    flow: int = 0
    resource: int | None = None
    slot: int = 0
    key: Any = None
    value: int = 0
    delay_ps: int = 0
    key_done: Any = None


class Program:
    """Turns rows into operations for one plan on one machine, and adds up what is static.

    ``everything_shared`` is for plans that are followed while they run: it cannot be known then which
    resources only one flow will use, so all of them are treated as shared (the times are the same).
    """

    def __init__(self, machine: Resources, *, everything_shared: bool = False) -> None:
        self.machine = machine
        self.plan = machine.plan
        self.storages = Storages(self.plan)
        self.regions = Regions(self.storages)
        self.everything_shared = everything_shared
        self.engine_names = ["tensor", "vector", "channel", "control"]
        self.engine_names += [f"dma.{i}" for i in range(machine.dma.channels)]
        self._channels = {channel.name: channel for channel in self.plan.channels}
        self._sources = {c.name: c.source.compile() for c in self.plan.channels}
        self._first_queue: dict[str, int] = {}
        queues = 0
        for channel in self.plan.channels:
            self._first_queue[channel.name] = queues
            queues += channel.members * self.plan.units
        self.queues = queues
        self._links: dict[int, Link] = {}
        self._steady: dict[tuple[int, int], tuple[Any, list[Link]]] = {}
        self._users: dict[int, Any] = {}
        self._raisers: dict[Any, int] = {}
        self._contested: set[Any] = set()
        self.flags: dict[Any, int] = {}
        """Numbers of the flags that one unit alone raises; a flag is (name, unit, member)."""
        self.shared: set[int] = set()
        self.copies = [0] * self.plan.units
        self.cohorts: list[Any] = []
        """Who was followed; their counts say how many messages went through the queues."""
        self.members = self._group_members()
        self.orders_shared = self._has_shared_storage()

    def _has_shared_storage(self) -> bool:
        regions = [
            r
            for stream in self.plan.streams
            for s in pm.statements(stream.body)
            for r in (getattr(s, "write", None), getattr(s, "into", None), *getattr(s, "reads", ()))
            if isinstance(r, pm.Region)
        ]
        return any(t.shared for t in self.plan.tiles) or any(r.at is not None for r in regions)

    def _group_members(self) -> dict[tuple[str, int], tuple[int, ...]]:
        units = np.arange(self.plan.units, dtype=np.int64)
        members: dict[tuple[str, int], list[int]] = {}
        for group in self.plan.groups:
            keys = np.broadcast_to(group.key.evaluate({"unit": units}), units.shape)
            for unit, key in enumerate(keys.tolist()):
                if key >= 0:
                    members.setdefault((group.name, key), []).append(unit)
        return {key: tuple(units) for key, units in members.items()}

    # queues

    def queue_number(self, channel: str, queue: int) -> int:
        return self._first_queue[channel] + queue

    def link(self, channel: pm.Channel, queue: int, strict: bool = True) -> Link:
        """The link of a queue; its sender is the channel's source (which must exist if ``strict``)."""
        number = self._first_queue[channel.name] + queue
        found = self._links.get(number)
        if found is None:
            receiver, member = divmod(queue, channel.members)
            sender = int(self._sources[channel.name]({"unit": receiver, "member": member}))
            if not 0 <= sender < self.plan.units and not strict:
                return Link(channel, number, receiver, receiver, member, 0, 1)
            if not 0 <= sender < self.plan.units:
                raise Odd(f"queue {channel.label(member)} of unit {receiver} is fed by nobody")
            vc = self.machine.virtual_channel(channel.name, sender, receiver)
            engine = self.engine_names.index(f"dma.{vc}")
            credit = self.machine.credit_ps(receiver, sender, channel)
            found = Link(channel, number, sender, receiver, member, engine, credit)
            self._links[number] = found
        return found

    def known_links(self) -> list[Link]:
        return list(self._links.values())

    def known_link(self, queue: int) -> Link:
        return self._links[queue]

    def send_path(self, link: Link, memory: str) -> Path:
        """The way of a message that is sent out of ``memory``."""
        channel = link.channel
        return self.machine.path(link.sender, memory, link.receiver, channel.memory, channel.chunk_bytes)

    def links(self, row: Row, size: int) -> list[Link]:
        """The link of every unit of a row (remembered while the queues stay the same)."""
        key = (id(row.statement), size)
        steady = self._steady.get(key)
        if steady is not None and steady[0] is row.queue:
            return steady[1]
        channel = self.channel(row.statement.channel)
        active = column(row.mask, size) if row.mask is not None else [True] * size
        queues = column(row.queue, size)
        found = [self.link(channel, q) if on else None for q, on in zip(queues, active, strict=True)]
        if row.mask is None:
            self._steady[key] = (row.queue, found)  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def channel(self, name: str) -> pm.Channel:
        return self._channels[name]

    # resources

    def use(self, path: Path, user: Any) -> None:
        """Note who uses the resources of a way; a second user makes a resource shared."""
        for stage in path.stages:
            if stage.resource is not None and self._users.setdefault(stage.resource, user) != user:
                self.shared.add(stage.resource)

    def contended(self, path: Path) -> bool:
        if self.everything_shared:
            return any(stage.resource is not None for stage in path.stages)
        return any(stage.resource in self.shared for stage in path.stages)

    def is_shared(self, resource: int | None) -> bool:
        return resource is not None and (self.everything_shared or resource in self.shared)

    # flags

    def raises(self, flag: Any, unit: int) -> None:
        """Note who signals a flag; with a second one, the order of its signals is a matter of time."""
        if self._raisers.setdefault(flag, unit) != unit:
            self._contested.add(flag)

    def flag(self, flag: Any) -> int | None:
        """The number of a flag that one unit alone raises: its signals arrive in the order of issue."""
        return None if flag in self._contested else self.flags.setdefault(flag, len(self.flags))

    # blocks

    def block(self, access: Access, number: int, owner: int | None) -> Block:
        """One access of one unit, which may be to another owner's storage."""
        return self.regions.block(number, 0 if owner is None else (owner + 1) << OWNER_SHIFT)

    def copy_path(self, unit: int, source: Access, target: Access, i: int) -> Path:
        """The way of a copy between two blocks, one of which may belong to another unit."""
        machine = self.machine
        ends = []
        for access in (source, target):
            storage = at(access.storage, i)
            owner = at(access.owner, i)
            tile = self.storages.tile(access.tile)
            if owner is None:
                owner = unit
            elif tile is not None and tile.shared:
                owner = self._nearest(tile, owner, unit)
            ends.append((owner, self.storages.memory(storage)))
        return machine.path(*ends[0], *ends[1])

    def _nearest(self, tile: pm.Tile, owner: int, unit: int) -> int:
        """A unit that stands at a shared copy of a tile: oneself if one of its sharers, else the first."""
        units = np.arange(self.plan.units, dtype=np.int64)
        owners = np.broadcast_to(tile.owner.evaluate({"unit": units}), units.shape)
        if owners[unit] == owner:
            return unit
        found = np.flatnonzero(owners == owner)
        return int(found[0]) if len(found) else unit


def column(value: Any, size: int) -> list[Any]:
    """A field of a row as a list over its units."""
    return value.tolist() if isinstance(value, np.ndarray) else [value] * size


def at(value: Any, i: int) -> Any:
    """A field of a row for the i-th unit of its cohort."""
    return int(value[i]) if isinstance(value, np.ndarray) else value
