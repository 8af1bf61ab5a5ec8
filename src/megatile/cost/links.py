"""What the links of a machine have to carry. The busiest one bounds a plan's time from below, and so does the
latency of a message.

The ends of a transfer are the hardware units of the instances that have its regions, as far as these stay
where they are; of instances in slots it is the unit of those that they are in. Commands whose ends or bytes
are not known without running count as none.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from megatile.cost.stream_counts import Values, Walk, value_of
from megatile.hda.model import Unit
from megatile.hda.routing import Link
from megatile.plan import model as pm
from megatile.plan.residency import copies
from megatile.timing.fabric import Stage
from megatile.timing.resources import Resources

MAX_HOPS = 1 << 24
"""Links of routes that are looked at."""
Pairs = tuple[Any, Any, Any]
"""Where transfers begin and end, and how many bytes each has."""


def busiest_link(whole: Resources) -> int:
    """Picoseconds that the busiest link serves at least, or that a message is on its way."""
    moved: dict[str, list[Pairs]] = {}
    latency_ps = 0
    for stream in whole.plan.streams:
        transfers = _Transfers(whole, stream)
        latency_ps = max(latency_ps, transfers.latency_ps)
        for name, pairs in transfers.found.items():
            moved.setdefault(name, []).extend(pairs)
    busy, hops = dict[str, Any](), 0
    for name, found in moved.items():
        view = whole.of(name) if whole.plan.levels else whole
        here, there, nbytes = (np.concatenate(part) for part in zip(*found, strict=True))
        keys, which = np.unique(here * view.level.total + there, return_inverse=True)
        amounts = np.bincount(which.reshape(-1), nbytes, len(keys))
        here, there = np.divmod(keys, view.level.total)
        for group in view.fabric.alike(view.level.name, here, there):
            first = int(group.pairs[0])
            ends = (Unit(view.level.name, int(end[first])) for end in (here, there))
            stages = view.fabric.stages(*ends)
            hops += len(stages) * len(group.pairs)
            if hops > MAX_HOPS:
                break
            shifts, which = np.unique(group.shifts, return_inverse=True)
            sums = np.bincount(which.reshape(-1), amounts[group.pairs], len(shifts))
            for stage in stages:
                _count(busy, view, stage, shifts, sums)
    served_ps = max((float(np.max(served, initial=0.0)) for served in busy.values()), default=0.0)
    return max(latency_ps, int(served_ps))


def _count(busy: dict[str, Any], view: Resources, stage: Stage, shifts: Any, sums: Any) -> None:
    """Count bytes over a link, and over those as far from it as their transfers are from the first."""
    key = stage.resource
    if key is None:
        return
    served = np.maximum(0.0, np.floor(sums * 1e12 / stage.bandwidth) - 1) / view.fabric.widths[key]
    if not isinstance(key, Link):
        busy[str(key)] = busy.get(str(key), 0.0) + served.sum()
        return
    network = view.hda.network(key.network)
    per = network.topology.link_count
    if key.network not in busy:
        busy[key.network] = np.zeros(view.hda.level(network.level).total * per)
    busy[key.network][key.owner * per + key.number + shifts] += served


class _End(NamedTuple):
    """One end of a transfer: the level and the number of an instance, and in which memories it may lie."""

    level: str
    number: Any
    memories: set[str]


class _Transfers(Walk):
    """The transfers of a stream between units that stay where they are, by the level of these."""

    def __init__(self, whole: Resources, stream: pm.Stream) -> None:
        self.whole, self.plan, self.hda = whole, whole.plan, whole.hda
        self.own = self.plan.level(stream.level).name
        self.tiles = {tile.name: tile for tile in self.plan.tiles}
        self.channels = {channel.name: channel for channel in self.plan.channels}
        self.places = copies(self.plan, whole.hda) if self.plan.levels else {self.own: (whole.spots, None)}
        self.found: dict[str, list[Pairs]] = {}
        self.latency_ps = 0
        """How long a message is on its way, as if it were empty: the longest of those looked at."""
        super().__init__(stream)

    def command(self, s: Any, known: Values, times: Any) -> None:
        nbytes = value_of(s.work.bytes, known) if isinstance(s, (pm.Compute, pm.Send)) else None
        if isinstance(s, pm.Send):
            channel = self.channels[s.channel]
            there = _End(self.plan.level(channel.level).name, value_of(s.to, known), {channel.memory})
            self.transfer(self.end(s.read, known), there, nbytes, times)
            self.message(s, known["unit"], there, times)
        elif isinstance(s, pm.Compute) and s.engine == "dma":
            source = s.reads[0] if s.reads else s.write
            ends = self.end(source, known), self.end(s.write, known)
            if any(r.at is not None or self.is_spread(r) for r in (source, s.write)):
                self.transfer(*ends, nbytes, times)

    def message(self, s: pm.Send, units: Any, there: _End, times: Any) -> None:
        """Look at the message of the first unit that sends one."""
        alive = np.flatnonzero(times > 0)
        if self.plan.levels or there.number is None or not len(alive) or s.read.tile not in self.tiles:
            return
        unit, peer = (int(np.broadcast_to(x, times.shape)[alive[0]]) for x in (units, there.number))
        if 0 <= peer < self.plan.units and peer != unit:
            channel = self.channels[s.channel]
            ends = unit, self.tiles[s.read.tile].memory, peer, channel.memory
            path = self.whole.on_channel(channel).path(*ends, channel.chunk_bytes)
            self.latency_ps = max(self.latency_ps, path.startup_ps + path.latency_ps)

    def end(self, region: pm.Region, known: Values) -> _End:
        """Who has a region, and where it lies: that of a message lies in the memory of some channel."""
        tile = self.tiles.get(region.tile)
        memories = {c.memory for c in self.plan.channels} if tile is None else {tile.memory}
        if tile is not None and self.is_spread(region):
            return _End(str(tile.over), self.part(tile, region, known), memories)
        if region.at is None or tile is None:
            return _End(self.own, known["unit"], memories)
        return _End(self.plan.level(tile.level).name, value_of(region.at, known), memories)

    def is_spread(self, region: pm.Region) -> bool:
        """Whether a region lies with other units; not those of a level with slots, which are not known."""
        over = self.tiles[region.tile].over if region.tile in self.tiles and region.at is None else None
        return over is not None and self.plan.per(self.own, over) is not None

    def part(self, tile: pm.Tile, region: pm.Region, known: Values) -> Any:
        """The instance with which the block of a spread tile lies where copies of a region begin."""
        number, level = value_of(tile.block_of(region), known), self.plan.level(tile.over)
        if number is None:
            return None
        blocks, around = prod(tile.block_grid), (self.plan.per(self.own, tile.over) or 1) * level.count
        return known["unit"] // around * level.count + np.clip(number, 0, blocks - 1) * level.count // blocks

    def transfer(self, here: _End, there: _End, nbytes: Any, times: Any) -> None:
        level = self.outer(here.level, there.level)
        if here.number is None or there.number is None or nbytes is None or level is None:
            return
        spots, apart, ends = self.places[level][0], times > 0, []
        for end in (here, there):
            around = self.plan.instances(end.level) // self.plan.instances(level)
            number = np.broadcast_to(end.number, times.shape) // around
            apart &= (number >= 0) & (number < len(spots))
            ends.append(spots[np.clip(number, 0, len(spots) - 1)])
        # Each reaches a memory that both share by itself.
        total = self.hda.level(self.hda.scale(self.plan.level(level).scale).level).total
        for name in here.memories | there.memories:
            whole = min(total, self.hda.level(self.hda.memory(name).level).total)
            apart &= ends[0] * whole // total != ends[1] * whole // total
        if apart.any():
            moved = np.broadcast_to(nbytes, times.shape) * times
            pair = (ends[0][apart], ends[1][apart], moved[apart].astype(float))
            self.found.setdefault(level, []).append(pair)

    def outer(self, one: str, other: str) -> str | None:
        """The innermost level around both whose instances stay where they are."""
        around = self.around(other)
        found = [name for name in self.around(one) if name in around]
        return found[0] if found else None

    def around(self, name: str) -> list[str]:
        """The levels around one and itself, innermost first, from where all stay."""
        found: list[str] = []
        level: pm.Level | None = self.plan.level(name)
        while level is not None:
            found = [] if level.slots is not None else [*found, level.name]
            level = self.plan.level(level.parent) if level.parent else None
        return found
