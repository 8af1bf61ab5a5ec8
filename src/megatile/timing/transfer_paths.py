"""Paths of transfers and control messages through the memories and networks of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from megatile.core.errors import MissingDescriptionError, RouteError
from megatile.plan import model as pm
from megatile.timing.engine_times import EngineTimes
from megatile.timing.fabric import (
    MAX_UNITS_WITH_SHARED_CACHE,
    Path,
    PathGroup,
    Stage,
    equal,
    serialise_ps,
)

PORTS = 16
"""Links of a unit are numbered from a multiple of this on in each network."""


class TransferPaths(EngineTimes):
    """Adds paths between memories of units, and times of messages."""

    def path(
        self,
        unit: int,
        memory: str,
        peer: int,
        peer_memory: str,
        chunk: int | None = None,
        same: bool | None = None,
        caches: bool = False,
        by: str = "",
    ) -> Path:
        """Return the path of a transfer out of one unit's memory into another's (or its own: ``same``);
        ``caches``: through the caches in front of memories that the unit reaches by itself; ``by``: a DMA
        engine.

        A memory that both units share is reached by each through its own port, not through the other.
        ``chunk``: bytes after which others may go first on shared links, besides the links' own granules.
        """
        same = unit == peer if same is None else same
        apart = self.places[unit] != self.places[peer]
        caches = caches and not apart
        key = (self.places[unit], memory, self.places[peer], peer_memory, chunk, same, caches, by)
        if key not in self._paths:
            read, write = ((self.caches(name, unit) if caches else ()) for name in (memory, peer_memory))
            stages = self._memory_stages(read[0].name if read else memory, unit)
            if apart and not self._together(unit, peer, memory, peer_memory):
                stages += self.fabric.stages(self.hardware(unit), self.hardware(peer))
            if not (memory == peer_memory and same):
                # What caches take is taken at the last stage.
                stages += reversed(self._memory_stages(write[0].name if write else peer_memory, peer))
            self._paths[key] = made = self._made(tuple(stages), chunk, by, apart)
            made.reads, made.writes, made.memories = read, write, (memory, peer_memory)
        return self._paths[key]

    def paths(
        self,
        units: Any,
        memory: str,
        peers: Any,
        peer_memory: str,
        chunk: int | None = None,
        same: bool | None = None,
        caches: bool = False,
        by: str = "",
    ) -> list[tuple[Path, PathGroup]]:
        """Return the paths of many transfers (arrays of units), in groups of equal paths: the path of the
        first of each."""
        how = (memory, peer_memory, chunk, same, caches, by)
        found: list[tuple[Path, PathGroup]] = self._of_all(
            ("paths", *how), units, peers, lambda: [*self._groups(units, peers, *how)]
        )
        return found

    def _of_all(self, what: tuple[Any, ...], units: Any, peers: Any, find: Callable[[], Any]) -> Any:
        """Compute something for many pairs of units; for few pairs the result is cached between plans."""
        if len(units) > MAX_UNITS_WITH_SHARED_CACHE:
            return find()
        ends = self.spots[units], self.spots[peers], units == peers
        key = (*what, *(each.tobytes() for each in ends))
        if key not in self._pairs:
            found = find()
            if len(self._pairs) > MAX_UNITS_WITH_SHARED_CACHE:
                self._pairs.clear()
            self._pairs[key] = found
        return self._pairs[key]

    def _groups(
        self, units: Any, peers: Any, memory: str, peer_memory: str, chunk: Any, same: Any, *how: Any
    ) -> Iterator[tuple[Path, PathGroup]]:
        key = np.zeros(len(units), dtype=np.int64) if same is not None else (units == peers).astype(np.int64)
        for name, ends in ((memory, units), (peer_memory, peers)):
            for total in self._told_apart(name):
                which = self.spots[ends] * total // self.level.total
                key = np.unique(key * total + which, return_inverse=True)[1]
        for group in self.fabric.alike(self.level.name, self.spots[units], self.spots[peers]):
            for part in equal(key[group.pairs]):
                pairs, shifts = group.pairs[part], group.shifts[part] - group.shifts[part[0]]
                ends = int(units[pairs[0]]), int(peers[pairs[0]])
                path = self.path(ends[0], memory, ends[1], peer_memory, chunk, same, *how)
                yield path, PathGroup(group.network, pairs, shifts)

    def _made(self, stages: tuple[Stage, ...], chunk: int | None, by: str = "", apart: bool = True) -> Path:
        dma = self.mover(by) if by else self.dma
        if self.view.side_by_side and not apart:  # start and rate are those of messages
            dma = replace(dma, startup_ps=0, bandwidth=float("inf"))
        if dma.latency_ps:  # at the end: it holds up nobody else
            last = stages[-1]
            stages = (*stages[:-1], last._replace(latency_ps=last.latency_ps + dma.latency_ps))
        made = Path(stages, dma.startup_ps, dma.bandwidth)
        if chunk is not None:
            made.granule = min(chunk, made.granule or chunk)
        return made

    def virtual_channel(self, channel: str | None, unit: int | None = None, peer: int | None = None) -> int:
        """Loads and stores use virtual channel 0. Messages share the others by the link they leave through,
        so that those of one link keep their order and those of different links run in parallel while channels
        last; without a link, the plan's channels take turns. Kernels that send to several peers at once
        (`MachineTiming.side_by_side`) have a channel for each."""
        others = self.dma.channels - 1
        if channel is None or others < 2:
            return 0 if channel is None else others
        port = None
        if unit is not None and peer is not None and self.view.side_by_side:
            return 1 + (self.places[peer] - self.places[unit]) % others
        if unit is not None and peer is not None:
            key = self.places[unit], self.places[peer]
            if key not in self._ports:
                self._ports[key] = self.port(unit, peer)
            port = self._ports[key]
        if port is None:
            port = next(i for i, c in enumerate(self.plan.channels) if c.name == channel)
        return 1 + port % others

    def virtual_channels(self, channel: str, units: Any, peers: Any) -> Any:
        """`virtual_channel` of many messages at once."""
        if self.dma.channels < 3:
            return np.full(len(units), self.virtual_channel(channel))
        one = partial(self.virtual_channel, channel)
        what = ("lanes", next(i for i, c in enumerate(self.plan.channels) if c.name == channel))
        return self._of_all(what, units, peers, lambda: self._each(units, peers, one))

    def port(self, unit: int, peer: int) -> int | None:
        """Return the number of the link through which a unit reaches a peer, counted equally for units in
        equal positions."""
        try:
            legs = self.hda.route(self.hardware(unit), self.hardware(peer)).legs
        except (RouteError, MissingDescriptionError):
            return None
        if not legs:
            return None
        network, run = legs[0].network, legs[0].runs[0]
        place = next(i for i, n in enumerate(self.hda.networks) if n.name == network.name)
        if run.axis == "direct":
            side = (run.step - run.start) % network.topology.size
        elif run.axis == "path":
            first = network.topology.ends(next(iter(network.topology.links(run))))[1]
            side = [str(near) for near in network.topology.neighbors(run.start)].index(first)
        else:
            side = 2 * "xyz".find(run.axis) + (run.step > 0) if run.axis in "xyz" else 0
        return PORTS * place + side

    def _each(self, units: Any, peers: Any, one: Callable[[int, int], int], lengths: bool = False) -> Any:
        """Return a number of every pair, which is that of the first of its group."""
        found = np.empty(len(units), dtype=np.int64)
        for group in self.fabric.alike(self.level.name, self.spots[units], self.spots[peers], lengths):
            found[group.pairs] = one(int(units[group.pairs[0]]), int(peers[group.pairs[0]]))
        return found

    def _wires(self, unit: int, peer: int) -> tuple[int, float]:
        """Return the latency between two units, and the least bandwidth."""
        stages = self.fabric.stages(self.hardware(unit), self.hardware(peer))
        slowest = min((s.bandwidth for s in stages), default=float("inf"))
        return sum(s.latency_ps for s in stages), slowest

    def message_ps(self, unit: int, peer: int, size: int) -> int:
        """Return a small control message between units; it does not contend for links. At least 1 ps."""
        key = (self.places[unit], self.places[peer], size)
        known = self._messages.get(key)
        if known is None:
            known = self._messages[key] = self._message_ps(unit, peer, size)
        return known

    def _message_ps(self, unit: int, peer: int, size: int) -> int:
        if self.places[unit] == self.places[peer]:
            return 1
        latency, slowest = self._wires(unit, peer)
        return max(1, latency + serialise_ps(size, slowest))

    def messages_ps(self, units: Any, peers: Any, size: int | None = None) -> Any:
        """Return how long many control messages take at once; signals where no size is given."""
        size = self._control.signal if size is None else size
        one = partial(self.message_ps, size=size)
        return self._of_all(("messages", size), units, peers, lambda: self._each(units, peers, one, True))

    def signal_ps(self, unit: int, peer: int) -> int:
        """Return how long a signal travels to a flag of another unit."""
        return self.message_ps(unit, peer, self._control.signal)

    def credit_ps(self, receiver: int, sender: int, channel: pm.Channel) -> int:
        """Return how long a returned credit travels: latency of the path back and its own bytes."""
        return self.on_channel(channel).message_ps(receiver, sender, self.credit_bytes(channel))

    def credit_bytes(self, channel: pm.Channel) -> int:
        if channel.credit_bytes is not None:
            return channel.credit_bytes
        return next((q.credit for q in self.hda.channels if q.credit), self._control.credit)

    @cached_property
    def message_queues(self) -> int:
        """How many queues for copies and messages a unit has, of its DMA engine or of kernels that send."""
        mine = [c for c in self.plan.channels if self.views.get(self.plan.level(c.level).name) is self]
        return max([self.dma.channels, *(self.on_channel(c).dma.channels for c in mine)])
