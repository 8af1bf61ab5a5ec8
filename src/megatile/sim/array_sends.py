"""Sends of many units at once: how long they take, and that no two of them meet on a link.

A link with two users needs no arbitration as long as they never use it at the same time: then every transfer
takes as long as if it were alone. `Sends.pass_links` holds every transfer against those that were there
before; the first two that meet make the plan `NotRegular`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from megatile.sim.lowering import bytes_moved, transfer_times
from megatile.sim.program import Link, Program
from megatile.sim.rows import Row
from megatile.sim.values import Value, level, plain_int, same_units
from megatile.timing.fabric import Path

if TYPE_CHECKING:
    from megatile.sim.arrays import Lane


class NotRegular(Exception):
    """The plan needs arbitration, or its units drift apart; says why."""


class LinksShared(NotRegular):
    """A link or memory has two users, which may or may not meet there."""


class Claims(NamedTuple):
    """The shared links of some transfers: which unit's, which link, and from when to when after its start."""

    position: Any
    resource: Any
    begin: Any
    end: Any
    distinct: bool
    """No link is there twice."""


class SendTimes(NamedTuple):
    """What a row of sends takes; ``of`` is what it was worked out for."""

    channel: str
    slots: int
    engine: int
    busy: Value
    latency: Value
    claims: Claims | None
    of: tuple[Any, Any]


class Sends:
    """The times of sends. ``alone``: all users of every link are known, and links may be shared."""

    def __init__(self, program: Program, *, alone: bool) -> None:
        self.program = program
        self.alone = alone
        self._until: Any = np.zeros(0, dtype=np.int64)
        """Per link, when the last transfer so far has passed it."""
        self._ways: dict[Any, tuple[int, int, list[tuple[int, int, int]]]] = {}

    def times(self, lane: Lane, row: Row, ends: Any) -> SendTimes:
        statement = id(row.statement) if row.mask is not None or plain_int(row.nbytes) is None else 0
        key = (row.statement.channel, statement, id(row.queue), plain_int(row.nbytes), ends)
        known = lane.times.get(key) if None not in key else None
        if known is not None and known.of[0] is row.queue and same_units(known.of[1], row.mask):
            return known
        made = self._worked_out(lane, row)
        if None not in key:
            lane.times[key] = made
        return made

    def _worked_out(self, lane: Lane, row: Row) -> SendTimes:
        program = self.program
        links: list[Link] = program.links(row, lane.size)
        busy, latency, engine = [0] * lane.size, [0] * lane.size, None
        claims: list[tuple[int, int, int, int]] = []
        for i, link in enumerate(links):
            if link is None:
                continue
            storage = row.accesses[0].storage
            memory = program.storages.memory(int(storage[i]) if isinstance(storage, np.ndarray) else storage)
            path = program.send_path(link, memory)
            program.use(path, ("queue", link.queue))
            if program.contended(path):
                if not self.alone:
                    raise LinksShared("a link or memory has two users")
                busy[i], latency[i], crossed = self._alone(path, bytes_moved(row, i))
                claims += [(i, *crossing) for crossing in crossed]
            else:
                busy[i], latency[i] = transfer_times(path, bytes_moved(row, i))
            if engine is not None and engine != link.engine:
                raise NotRegular("units send through different virtual channels")
            engine = link.engine
        if program.machine.engine_resource("dma", lane.units[0]) is not None:
            raise NotRegular("units share an engine")
        held: Value = level(busy) if row.mask is None else np.array(busy)
        later: Value = level(latency) if row.mask is None else np.array(latency)
        channel = program.channel(row.statement.channel)
        of = (row.queue, row.mask)
        return SendTimes(channel.name, channel.slots, engine or 0, held, later, _claims(claims), of)

    def _alone(self, path: Path, nbytes: int) -> tuple[int, int, list[tuple[int, int, int]]]:
        """A transfer that nobody meets: how long its source is held, how much later it arrives, and per
        shared link from when to when it is there."""
        shared = tuple(i for i, stage in enumerate(path.stages) if stage.resource in self.program.shared)
        speeds = tuple((stage.latency_ps, stage.bandwidth) for stage in path.stages)
        key = (nbytes, shared, speeds, path.startup_ps, path.dma_bandwidth, path.granule)
        if key not in self._ways:
            self._ways[key] = alone(path, nbytes, shared)
        busy, latency, crossed = self._ways[key]
        return busy, latency, [(path.stages[i].resource, *span) for i, *span in crossed]  # type: ignore[misc]

    def pass_links(self, claims: Claims, start: Value, size: int) -> None:
        """Let transfers that start at these times pass their links, if they meet nobody there."""
        count = len(self.program.machine.fabric.keys)
        if len(self._until) < count:
            self._until = np.concatenate([self._until, np.zeros(count - len(self._until), dtype=np.int64)])
        at = np.broadcast_to(start, (size,))[claims.position]
        begin, end, resource = at + claims.begin, at + claims.end, claims.resource
        if not claims.distinct:
            order = np.lexsort((begin, resource))
            begin, end, resource = begin[order], end[order], resource[order]
            same = resource[1:] == resource[:-1]
            if (begin[1:][same] < end[:-1][same]).any():
                raise NotRegular("two messages meet on a link")
        if (begin < self._until[resource]).any():
            raise NotRegular("two messages meet on a link")
        np.maximum.at(self._until, resource, end)


def _claims(found: list[tuple[int, int, int, int]]) -> Claims | None:
    if not found:
        return None
    position, resource, begin, end = np.array(found, dtype=np.int64).T
    return Claims(position, resource, begin, end, len(np.unique(resource)) == len(resource))


def alone(path: Path, nbytes: int, shared: tuple[int, ...]) -> tuple[int, int, list[tuple[int, int, int]]]:
    """See `Sends._alone`, with stages for links; the rule of a transfer over stages stands in `fabric`.

    A transfer that is cut goes piece by piece; a later piece is never there before an earlier one, so the
    last two tell the end.
    """
    pieces = path.pieces(nbytes)
    offsets = [0]
    for size in pieces[:-1]:
        offsets.append(offsets[-1] + path.occupied_ps(size))
    left = arrived = 0
    crossed: dict[int, tuple[int, int]] = {}
    for offset, size in list(zip(offsets, pieces, strict=True))[-2:]:
        head = path.startup_ps + offset
        left = max(left, head + path.held_ps(size))
        dma, busy = path.stage_ps(size)
        tail = head + dma
        for place, (stage, taken) in enumerate(zip(path.stages, busy, strict=True)):
            if place in shared:
                until = max(crossed.get(place, (0, 0))[1], head + taken)
                crossed[place] = (head - offset, until)
            tail = max(tail, head + taken) + stage.latency_ps
            head += stage.latency_ps
        arrived = max(arrived, max(tail, head) + path.extra_ps)
    return left, arrived - left, [(place, *span) for place, span in crossed.items()]
