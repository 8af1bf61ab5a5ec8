"""What every rank of a mock run did with queues and memory, and whether a plan may do so.

A mock run moves data through queues without bounds. Its record says afterwards whether the slots suffice,
whether every message is received, and whether two ranks race: a quick replay finds nearly always that all is
well; where it does not, the record becomes a Plan, and ``check`` and ``execute`` say what is wrong in the
words they use for every plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.core.errors import Place
from megatile.language.kernel.context import QUEUES
from megatile.plan.build import PlanBuilder
from megatile.plan.check import check
from megatile.plan.execute import execute
from megatile.plan.handles import Handle, Part
from megatile.plan.model import Channel, Plan

Queue = tuple[int, int]
"""Receiving rank and member."""


@dataclass
class Message:
    """A message that a rank received; it stays in its slot until its last use."""

    name: str
    nbytes: int


@dataclass
class Event:
    """One thing a rank did: ``kind`` is send, receive, any, use, read, write, or end (of a name)."""

    kind: str
    place: Place | None
    nbytes: int
    queue: Queue = (-1, -1)
    message: Message | None = None
    copied: bool = False
    """A receive that copies its message out of the slot at once."""
    owner: int = -1
    start: int = 0


@dataclass
class Record:
    """The events of all ranks. ``part`` is the size of each rank's part of the tensor."""

    channel: Channel
    part: int
    ranks: list[list[Event]]
    choices: Counter[str] = field(default_factory=Counter)

    def add(self, rank: int, event: Event) -> Event:
        self.ranks[rank].append(event)
        return event

    def message(self, nbytes: int) -> Message:
        self.choices["messages"] += 1
        return Message(f"message_{self.choices['messages']}", nbytes)

    def verify(self, bounded: bool) -> None:
        """Raise what a plan would raise; nothing if all is well."""
        remote = any(e.owner not in (-1, rank) for rank, done in enumerate(self.ranks) for e in done)
        if not remote and self.replays(bounded):
            return
        plan = self.plan(bounded)
        check(plan)
        if remote:
            execute(plan, {"t": np.zeros((len(self.ranks), self.part), np.uint8)})

    def replays(self, bounded: bool, to_the_end: bool = False) -> bool:
        """Return whether all ranks come to their ends with the slots there are, and no message is left. A
        message stays in its slot until its last use, or ``to_the_end`` of its last name."""
        lasts = [self._last_uses(done, to_the_end) for done in self.ranks]
        at = [0] * len(self.ranks)
        sent: Counter[Queue] = Counter()
        taken: Counter[Queue] = Counter()
        freed: dict[Queue, set[int]] = {}
        sizes: dict[Queue, list[int]] = {}
        number: dict[str, tuple[Queue, int]] = {}
        moved = True
        while moved:
            moved = False
            for rank, done in enumerate(self.ranks):
                while at[rank] < len(done):
                    event = done[at[rank]]
                    if event.kind == "send":
                        if event.queue[0] < 0:
                            return False
                        before = sent[event.queue] - self.channel.slots
                        if bounded and before >= 0 and before not in freed.get(event.queue, ()):
                            break
                        sent[event.queue] += 1
                        sizes.setdefault(event.queue, []).append(event.nbytes)
                    elif event.kind in ("receive", "any"):
                        count = taken[event.queue]
                        if event.message is None or sent[event.queue] <= count:
                            break
                        if sizes[event.queue][count] != event.nbytes:
                            return False
                        number[event.message.name] = event.queue, count
                        taken[event.queue] += 1
                    for name in lasts[rank].get(at[rank], ()):
                        queue, count = number[name]
                        freed.setdefault(queue, set()).add(count)
                    at[rank] += 1
                    moved = True
        return all(a == len(done) for a, done in zip(at, self.ranks, strict=True)) and sent == taken

    @staticmethod
    def _last_uses(done: list[Event], to_the_end: bool) -> dict[int, list[str]]:
        """Per number of an event, the messages whose slots end with it."""
        last: dict[str, int] = {}
        for at, event in enumerate(done):
            if event.kind == "end" and not to_the_end:
                continue
            if event.message is not None and not event.copied:
                last[event.message.name] = at
            elif event.message is not None:
                last.setdefault(event.message.name, at)
        found: dict[int, list[str]] = {}
        for name, at in last.items():
            found.setdefault(at, []).append(name)
        return found

    # the record as a plan

    def plan(self, bounded: bool) -> Plan:
        """Return the Plan with one stream per rank, command by command; tiles are bytes."""
        every = [event for done in self.ranks for event in done]
        largest = max((e.nbytes for e in every), default=1)
        b = PlanBuilder("mock", scale="pe", units=len(self.ranks))
        tensor = b.tile("t", (self.part,), "u8", memory="hbm", role="inout")
        scratch = b.tile("tile", (max(1, largest),), "u8", memory="tcm")
        slots = self.channel.slots if bounded else max(1, sum(e.kind == "send" for e in every))
        channel = b.channel(
            QUEUES,
            source=self.channel.source,
            slot_bytes=max(1, largest),
            memory=self.channel.memory,
            members=self.channel.names or 1,
            slots=slots,
        )
        for rank, done in enumerate(self.ranks):
            with b.stream([rank]):
                names: dict[str, Handle] = {}
                for event in done:
                    b.place = event.place
                    _command(b, channel, rank, event, names, tensor, scratch)
        return b.finish()


def _command(
    b: PlanBuilder,
    channel: Channel,
    rank: int,
    event: Event,
    names: dict[str, Handle],
    tensor: Handle,
    scratch: Handle,
) -> None:
    size, message = event.nbytes, event.message
    own = scratch[0:size]
    if event.kind == "send":
        source = names[message.name] if message is not None and message.name in names else own
        b.send(channel, source, to=event.queue[0], member=max(0, event.queue[1]))
    elif event.kind == "any" and message is None:
        b.receive_any(channel, (size,), "u8")
    elif event.kind in ("receive", "any") and event.copied:
        b.receive(channel, (size,), "u8", member=event.queue[1], into=own)
    elif event.kind in ("receive", "any"):
        handle = b.receive(channel, (size,), "u8", member=event.queue[1])
        if message is not None:
            names[message.name] = handle
    elif event.kind == "use" and message is not None and message.name in names:
        b.copy(scratch[0 : message.nbytes], names[message.name])
    elif event.kind in ("read", "write"):
        region: Part = tensor[event.start : event.start + size]
        region = region if event.owner == rank else region.at(event.owner)
        b.copy(*((own, region) if event.kind == "read" else (region, own)))


class Memory:
    """Bytes by address: the tensor's from ``base`` on, which all ranks see, and a rank's own elsewhere."""

    def __init__(self, base: int, data: Any):
        self.base, self.data = base, data
        self.own: dict[tuple[str, int], int] = {}

    def tensor(self, space: str, address: int, nbytes: int) -> Any | None:
        """Return these bytes of the tensor, if they are its."""
        start = address - self.base
        inside = space == "hbm" and start >= 0 and start + nbytes <= len(self.data)
        return self.data[start : start + nbytes] if inside else None

    def read(self, space: str, address: int, nbytes: int) -> Any:
        found = self.tensor(space, address, nbytes)
        if found is not None:
            return found.copy()
        return np.array([self.own.get((space, address + at), 0) for at in range(nbytes)], np.uint8)

    def write(self, space: str, address: int, data: Any) -> None:
        found = self.tensor(space, address, len(data))
        if found is not None:
            found[:] = data
        else:
            self.own.update({(space, address + at): int(byte) for at, byte in enumerate(data)})
