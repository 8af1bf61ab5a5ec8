"""What the links of a machine have to carry. The busiest one bounds a plan's time from below, and so does the
latency of a message.

The ends of a transfer are the hardware units of the instances that have its regions, as far as these stay
where they are; of instances in slots it is the unit of those that they are in. Commands whose ends or bytes
are not known without running count as none.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from megatile.cost.stream_counts import Values, Walk, value_of
from megatile.hda.direct import Grid
from megatile.hda.model import Network, Unit
from megatile.hda.routing import Link
from megatile.plan import model as pm
from megatile.plan.residency import copies
from megatile.timing.fabric import Stage
from megatile.timing.resources import Resources

MAX_HOPS = 1 << 24
"""Parts of routes that are looked at: links, or runs of links at equal distances."""
MAX_LOOP_ROWS = 1 << 26
"""Rounds of loops, of all units, whose copies of spread tiles are looked at; more of them count as none."""
MAX_PAIRS = 1 << 22
"""Transfers that are kept before they are counted on their links."""
RELATIVE_ROUNDING = 1e-9
"""Share of sums of floating point numbers that may be wrong."""
MIN_RUN = 4
"""Links of a run from which on only its ends are written down."""
Pairs = tuple[Any, Any, Any]
"""Where transfers begin and end, and how many bytes each has."""


class LinkLoads(NamedTuple):
    """What links carry: how long the busiest serves at least, or a message is on its way, and the bytes of
    the busiest and of all (of meshes)."""

    busiest_ps: int
    busiest_bytes: float
    bytes: float


def busiest_link(whole: Resources) -> int:
    """Return picoseconds that the busiest link serves at least, or that a message is on its way."""
    return link_loads(whole).busiest_ps


def link_loads(whole: Resources) -> LinkLoads:
    """Count what a plan moves over links; it is kept with the plan."""
    known = whole.plan.cached.get(link_loads)
    if known is None or known[0] is not whole.hda:
        loads, latency_ps = _Loads(whole), 0
        for stream in whole.plan.streams:
            latency_ps = max(latency_ps, _Transfers(whole, stream, loads).latency_ps)
        longest, on_grids = loads.longest_ps(), loads.grids.values()
        found = LinkLoads(
            max(latency_ps, longest),
            max((grid.bytes()[0] for grid in on_grids), default=0.0),
            sum(grid.bytes()[1] for grid in on_grids),
        )
        whole.plan.cached[link_loads] = known = whole.hda, found
    return known[1]


class _Loads:
    """How long every link serves the transfers of a plan."""

    def __init__(self, whole: Resources) -> None:
        self.whole = whole
        self.pairs: dict[str, list[Pairs]] = {}
        self.kept = self.hops = 0
        self.busy: dict[str, Any] = {}
        self.ends: dict[tuple[str, int], Any] = {}
        """By network and distance of links: where runs of them begin (+) and have ended (-)."""
        self.grids: dict[str, _GridLoads] = {}
        """By level, what the links of meshes carry."""

    def add(self, level: str, pairs: Pairs) -> None:
        self.pairs.setdefault(level, []).append(pairs)
        self.kept += len(pairs[0])
        if self.kept > MAX_PAIRS:
            self.count()

    def count(self) -> None:
        """Count the transfers that were kept on their links."""
        for name, found in self.pairs.items():
            view = self.whole.of(name) if self.whole.plan.levels else self.whole
            here, there, nbytes = (np.concatenate(part) for part in zip(*found, strict=True))
            if name not in self.grids and (mesh := _mesh(view)) is not None:
                self.grids[name] = _GridLoads(view, mesh)
            if name in self.grids and self.grids[name].add(here, there, nbytes):
                continue
            keys, which = np.unique(here * view.level.total + there, return_inverse=True)
            amounts = np.bincount(which.ravel(), nbytes, len(keys))
            here, there = np.divmod(keys, view.level.total)
            for group in view.fabric.alike(view.level.name, here, there):
                if self.hops > MAX_HOPS:
                    break
                first = int(group.pairs[0])
                ends = (Unit(view.level.name, int(end[first])) for end in (here, there))
                shifts, which = np.unique(group.shifts, return_inverse=True)
                sums = np.bincount(which.ravel(), amounts[group.pairs], len(shifts))
                for run in _runs(view, view.fabric.stages(*ends)):
                    self.hops += len(shifts)
                    self._run(view, run, shifts, sums)
        self.pairs, self.kept = {}, 0

    def _run(self, view: Resources, run: _Run, shifts: Any, sums: Any) -> None:
        """Count bytes over a run of links, and over those as far from it as their transfers are."""
        served = np.maximum(0.0, np.floor(sums * 1e12 / run.bandwidth) - 1) / run.width
        if run.network is None:
            self.busy[run.name] = self.busy.get(run.name, 0.0) + served.sum()
            return
        network = view.hda.network(run.network)
        size = view.hda.level(network.level).total * network.topology.link_count
        if run.length < MIN_RUN:
            if run.network not in self.busy:
                self.busy[run.network] = np.zeros(size)
            busy = self.busy[run.network]
            for number in range(run.length):
                busy[run.first + number * run.step + shifts] += served
            return
        key = run.network, run.step
        if key not in self.ends:
            self.ends[key] = np.zeros(size + run.step)
        ends = self.ends[key]
        ends[run.first + shifts] += served
        ends[run.first + run.length * run.step + shifts] -= served

    def longest_ps(self) -> int:
        """Return how long the busiest link serves."""
        self.count()
        for (network, step), ends in self.ends.items():
            lines = np.pad(ends, (0, -len(ends) % step)).reshape(-1, step)
            served = lines.cumsum(axis=0).ravel()[: len(ends) - step]
            self.busy[network] = self.busy.get(network, 0.0) + served
        self.ends = {}
        longest = max((float(np.max(served, initial=0.0)) for served in self.busy.values()), default=0.0)
        return int(
            max([longest, *(grid.longest_ps() for grid in self.grids.values())]) * (1 - RELATIVE_ROUNDING)
        )


def _mesh(view: Resources) -> Network | None:
    """Return the network between the units of a level if it is a mesh without wrap-around links."""
    outside = [n for n in view.hda.networks if view.hda.level(n.level).position > view.level.position]
    nearest = min(outside, key=lambda n: view.hda.level(n.level).position, default=None)
    if nearest is None or not isinstance(nearest.topology, Grid) or any(nearest.topology.wrap):
        return None
    each = view.level.total // view.hda.level(nearest.level).total
    return nearest if each == nearest.topology.size else None


class _GridLoads:
    """Bytes on the links of a mesh. Routes go along one dimension after the other, so that of each only the
    ends of its straight parts have to be written down."""

    def __init__(self, view: Resources, network: Network) -> None:
        self.view, self.network = view, network
        self.extents = network.topology.dims
        shape = (len(self.extents), 2, view.level.total)
        self.begins = np.zeros(shape)
        """By dimension and direction: bytes of parts that begin (+) at a unit, or ended (-) before it."""
        self.smallest = np.inf
        self.route: tuple[int, int] | None = None

    def add(self, here: Any, there: Any, nbytes: Any) -> bool:
        """Count transfers; False if some leave the mesh."""
        size, count = self.network.topology.size, self.view.level.total
        if (here // size != there // size).any() or (nbytes <= 0).any():
            return False
        self.smallest = min(self.smallest, float(nbytes.min(initial=np.inf)))
        apart = np.flatnonzero(here != there)
        if self.route is None and len(apart):
            self.route = int(here[apart[0]]), int(there[apart[0]])
        at, stride = here, 1
        for axis, extent in enumerate(self.extents):
            delta = there // stride % extent - at // stride % extent
            to = at + delta * stride
            for side, ahead in enumerate((delta > 0, delta < 0)):
                # Links are numbered by the unit that they leave: at … to - 1 forwards, to + 1 … at backwards.
                first, last = (at, to) if side == 0 else (to + stride, at + stride)
                amounts, ends = nbytes[ahead], last[ahead]
                self.begins[axis, side] += np.bincount(first[ahead], amounts, count)
                inside = (last[ahead] - stride) // stride % extent < extent - 1
                self.begins[axis, side] -= np.bincount(ends[inside], amounts[inside], count)
            at, stride = to, stride * extent
        return True

    def longest_ps(self) -> float:
        """Return how long the busiest link serves; each transfer may be a picosecond shorter than its
        bytes."""
        if self.route is None:
            return 0.0
        ends = (Unit(self.view.level.name, number) for number in self.route)
        runs = _runs(self.view, self.view.fabric.stages(*ends))
        link = next((run for run in runs if run.network), None)
        if link is None:  # links without a limit of their own
            return 0.0
        per_byte = 1e12 / link.bandwidth
        return self.bytes()[0] * (per_byte - 1 / self.smallest) / link.width

    def bytes(self) -> tuple[float, float]:
        """Return bytes of the busiest link, and of all links together."""
        most = total = 0.0
        for axis in range(len(self.extents)):
            lines = self.begins[axis].reshape(2, -1, *self.extents[::-1])
            carried = lines.cumsum(axis=lines.ndim - 1 - axis)
            most, total = max(most, float(carried.max(initial=0.0))), total + float(carried.sum())
        return most, total


class _Run(NamedTuple):
    """Links of one rate in a row whose numbers are ``step`` apart (from the least on), or something else that
    is shared (no network)."""

    name: str
    network: str | None
    first: int
    step: int
    length: int
    bandwidth: float
    width: float


def _runs(view: Resources, stages: Iterable[Stage]) -> list[_Run]:
    """Divide a route into runs of links at equal distances."""
    found: list[_Run] = []
    for stage in stages:
        key = stage.resource
        if key is None:
            continue
        width = view.fabric.widths[key]
        if not isinstance(key, Link):
            found.append(_Run(str(key), None, 0, 1, 1, stage.bandwidth, width))
            continue
        number = key.owner * view.hda.network(key.network).topology.link_count + key.number
        one = _Run(key.network, key.network, number, 0, 1, stage.bandwidth, width)
        last = found[-1] if found else one
        step = number - (last.first + (last.length - 1) * last.step)
        alike = last is not one and last[1] == one[1] and last[5:] == one[5:] and step
        if alike and (last.length == 1 or step == last.step):
            found[-1] = last._replace(step=step, length=last.length + 1)
        else:
            found.append(one)
    return [run if run.step >= 0 else _reversed(run) for run in found]


def _reversed(run: _Run) -> _Run:
    """Return the run from its other end."""
    return run._replace(first=run.first + (run.length - 1) * run.step, step=-run.step)


class _End(NamedTuple):
    """One end of a transfer: the level and the number of an instance, and in which memories it may lie."""

    level: str
    number: Any
    memories: set[str]


class _Transfers(Walk):
    """The transfers of a stream between units that stay where they are, by the level of these."""

    def __init__(self, whole: Resources, stream: pm.Stream, loads: _Loads) -> None:
        self.whole, self.plan, self.hda, self.loads = whole, whole.plan, whole.hda, loads
        self.own = self.plan.level(stream.level).name
        self.tiles = {tile.name: tile for tile in self.plan.tiles}
        self.channels = {channel.name: channel for channel in self.plan.channels}
        self.places = copies(self.plan, whole.hda) if self.plan.levels else {self.own: (whole.spots, None)}
        self.latency_ps = 0
        """How long a message is on its way, as if it were empty: the longest of those looked at."""
        super().__init__(stream)

    def loop(self, s: pm.Loop, known: Values, times: Any) -> None:
        """Leave out loops in which nothing moves between units."""
        if any(map(self.moves, pm.statements(s.body))):
            super().loop(s, known, times)

    def max_rows(self, s: pm.Loop) -> int:
        """More where copies begin or end at another unit in every round."""
        regions = (r for c in pm.statements(s.body) if isinstance(c, pm.Compute) for r in (*c.reads, c.write))
        if any(map(self.is_spread, regions)):
            return max(self.MAX_ROWS, MAX_LOOP_ROWS - self.seen)
        return self.MAX_ROWS

    def moves(self, s: Any) -> bool:
        """Return whether a command may have its ends at different units."""
        if not isinstance(s, pm.Compute) or s.engine != "dma":
            return isinstance(s, pm.Send)
        return any(r.at is not None or self.is_spread(r) for r in (*s.reads[:1], s.write))

    def command(self, s: Any, known: Values, times: Any) -> None:
        if not self.moves(s):
            return
        nbytes = value_of(s.work.bytes, known)
        if isinstance(s, pm.Send):
            channel = self.channels[s.channel]
            there = _End(self.plan.level(channel.level).name, value_of(s.to, known), {channel.memory})
            self.transfer(self.end(s.read, known), there, nbytes, times)
            self.message(s, known["unit"], there, times)
        else:
            source = s.reads[0] if s.reads else s.write
            self.transfer(self.end(source, known), self.end(s.write, known), nbytes, times)

    def message(self, s: pm.Send, units: Any, there: _End, times: Any) -> None:
        """Look at the message of the first unit that sends one."""
        alive = np.flatnonzero(times > 0)
        if self.plan.levels or there.number is None or not len(alive) or s.read.tile not in self.tiles:
            return
        unit, peer = (int(np.broadcast_to(x, times.shape)[alive[0]]) for x in (units, there.number))
        if 0 <= peer < self.plan.units:
            channel = self.channels[s.channel]
            ends = unit, self.tiles[s.read.tile].memory, peer, channel.memory
            path = self.whole.on_channel(channel).path(*ends, channel.chunk_bytes)
            self.latency_ps = max(self.latency_ps, path.startup_ps + path.latency_ps)

    def end(self, region: pm.Region, known: Values) -> _End:
        """Return who has a region, and where it lies: that of a message lies in the memory of some
        channel."""
        tile = self.tiles.get(region.tile)
        memories = {c.memory for c in self.plan.channels} if tile is None else {tile.memory}
        if tile is not None and self.is_spread(region):
            return _End(str(tile.over), self.part(tile, region, known), memories)
        if region.at is None or tile is None:
            return _End(self.own, known["unit"], memories)
        return _End(self.plan.level(tile.level).name, value_of(region.at, known), memories)

    def is_spread(self, region: pm.Region) -> bool:
        """Return whether a region lies with other units; not those of a level with slots, which are not
        known."""
        over = self.tiles[region.tile].over if region.tile in self.tiles and region.at is None else None
        return over is not None and self.plan.per(self.own, over) is not None

    def part(self, tile: pm.Tile, region: pm.Region, known: Values) -> Any:
        """Return the instance with which the block of a spread tile lies where copies of a region begin."""
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
            self.loads.add(level, pair)

    def outer(self, one: str, other: str) -> str | None:
        """Return the innermost level around both whose instances stay where they are."""
        around = self.around(other)
        found = [name for name in self.around(one) if name in around]
        return found[0] if found else None

    def around(self, name: str) -> list[str]:
        """Return the levels around one and itself, innermost first, from where all stay."""
        found: list[str] = []
        level: pm.Level | None = self.plan.level(name)
        while level is not None:
            found = [] if level.slots is not None else [*found, level.name]
            level = self.plan.level(level.parent) if level.parent else None
        return found
