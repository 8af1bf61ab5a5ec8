"""Paths through the networks of an HDA: stages with latency, bandwidth and, where it matters, a resource.

The rule of a transfer of B bytes over stages 1..k (cut-through, one FIFO per stage): the head enters
stage i at h_i and is served at g_i = max(h_i, the stage is free); the stage is busy for B / bandwidth_i;
the head moves on at g_i + latency_i. The tail has arrived when every stage has let it through.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MissingDescriptionError, RouteError
from megatile.hda import HDA
from megatile.hda.direct import Grid
from megatile.hda.model import Network, Unit
from megatile.hda.routing import Link
from megatile.timing.faults import Faults
from megatile.timing.machine_timing import MachineTiming, TimingError

LONGEST_COMMAND_PS = 1 << 60
"""The longest time of one command, 13 days: a sum of several still fits into 63 bits."""
MAX_PIECES = 1024
"""A transfer is cut into at most so many granules, however long it is."""


MAX_KNOWN = 1 << 10
"""Up to so many groups of pairs are cached, and up to so many pairs in each more than once."""


MAX_UNITS_WITH_SHARED_CACHE = 256
"""Units of plans that share what they find out about a machine."""


def serialise_ps(amount: float, rate: float) -> int:
    """Return picoseconds for ``amount`` (bytes, operations) at ``rate`` per second, rounded up."""
    if amount <= 0 or rate == float("inf"):
        return 0
    if amount * 1e12 > LONGEST_COMMAND_PS * rate:
        raise TimingError(
            f"{amount:.4g} bytes or operations at {rate:.4g} per second take longer than 13 days",
            advice="use a faster machine or less work: simulated times have 63 bits of picoseconds",
        )
    return -int(-(amount * 1e12) // rate)


class Stage(NamedTuple):
    """One stretch of a path. ``resource``: the link or memory that others may be in, None where none can
    be."""

    resource: Any
    latency_ps: int
    bandwidth: float
    granule: int | None = None


class PathGroup(NamedTuple):
    """Some of many pairs of units, all with equal routes but for the numbers of their links in a network:
    those of each are shifted against those of the first by ``shifts``. Without a network they cross none, or
    there is one pair only."""

    network: Network | None
    pairs: Any
    shifts: Any


def shapes(grid: Grid, a: Any, b: Any) -> tuple[Any, Any, Any] | None:
    """Of many routes of a grid at once (arrays of different endpoints): a number for the shape of each, its
    first link and how many it has. Links of routes of one shape differ by as much as their first links do.
    None where the grid is too large for such numbers."""
    if prod(2 * extent * (extent + 1) for extent in grid.extents) >= 1 << 62:
        return None
    shape, hops = np.zeros(len(a), dtype=np.int64), np.zeros(len(a), dtype=np.int64)
    first, stride = np.full(len(a), -1, dtype=np.int64), 1
    for axis, (extent, wrap) in enumerate(zip(grid.extents, grid.wrap, strict=True)):
        place = a // stride % extent
        delta = b // stride % extent - place
        if wrap:
            delta = np.where(2 * abs(delta) > extent, delta - np.sign(delta) * extent, delta)
            delta = np.where(-2 * delta == extent, -delta, delta)
        around = (place + delta < 0) | (place + delta >= extent)
        shape = (shape * 2 * extent + delta + extent) * (extent + 1) + np.where(around, place + 1, 0)
        link = a * 2 * len(grid.extents) + 2 * axis + (delta < 0)
        first = np.where((first < 0) & (delta != 0), link, first)
        hops += abs(delta)
        stride *= extent
    return shape, first, hops


class Path:
    """The stages of a path, with the sums every transfer needs; times per size are cached."""

    __slots__ = (
        "_occupied", "_times", "bandwidth", "before_ps", "dma_bandwidth", "extra_ps", "figures",
        "first_resource", "granule", "latency_ps", "memories", "reads", "stages", "startup_ps", "writes",
    )  # fmt: skip

    def __init__(self, stages: tuple[Stage, ...], startup_ps: int, dma_bandwidth: float) -> None:
        self.stages = stages
        self.startup_ps = startup_ps
        self.dma_bandwidth = dma_bandwidth
        latency = sum(s.latency_ps for s in stages)
        self.latency_ps = max(1, latency)
        self.extra_ps = self.latency_ps - latency
        places = [i for i, s in enumerate(stages) if s.resource is not None]
        self.first_resource = places[0] if places else None
        """The first stage at which a transfer may have to wait."""
        self.before_ps = sum(s.latency_ps for s in stages[: places[0]]) if places else 0
        self.bandwidth = min([s.bandwidth for s in stages] + [dma_bandwidth])
        self.granule = min((s.granule for s in stages if s.granule), default=None)
        self.reads: tuple[Any, ...] = ()
        self.writes: tuple[Any, ...] = ()
        """Caches in front of what is read (at the first stage) and written (at the last), nearest first."""
        self.memories: tuple[str, ...] = ()
        """Where it begins and ends."""
        each = tuple((s.latency_ps, s.bandwidth, s.resource is None) for s in stages)
        self.figures = (each, startup_ps, dma_bandwidth)
        """What decides times where nobody is in the way, besides granules and caches."""
        self._occupied: dict[int, int] = {}
        self._times: dict[int, tuple[int, tuple[int, ...]]] = {}

    def occupied_ps(self, nbytes: int) -> int:
        """Return how long the narrowest stage is busy: the time between the head and the tail."""
        known = self._occupied.get(nbytes)
        if known is None:
            known = self._occupied[nbytes] = serialise_ps(nbytes, self.bandwidth)
        return known

    def held_ps(self, nbytes: int) -> int:
        """Return how long the source is held: until its tail has left, and until its first turn is known."""
        return max(self.occupied_ps(nbytes), self.before_ps)

    def stage_ps(self, nbytes: int) -> tuple[int, tuple[int, ...]]:
        """Busy time of the DMA engine, and of every stage, for one transfer of that size."""
        times = self._times.get(nbytes)
        if times is None:
            each = tuple(serialise_ps(nbytes, s.bandwidth) for s in self.stages)
            times = self._times[nbytes] = (serialise_ps(nbytes, self.dma_bandwidth), each)
        return times

    def cuts(self, nbytes: int) -> bool:
        """Return whether a transfer of that size may be cut into granules."""
        return bool(self.granule) and nbytes > (self.granule or 0)

    def pieces(self, nbytes: int) -> list[int]:
        """Return the transfer cut into granules (one piece where no stage asks for them)."""
        if not self.cuts(nbytes):
            return [nbytes]
        size = max(self.granule or 1, -(-nbytes // MAX_PIECES))
        whole, rest = divmod(nbytes, size)
        return [size] * whole + ([rest] if rest else [])


class Fabric:
    """The networks of a machine as resources; faults change routes and speeds. Plans on one machine with the
    same faults share one."""

    _shared: ClassVar[WeakValueDictionary[tuple[int, int], Fabric]] = WeakValueDictionary()

    @classmethod
    def between(cls, hda: HDA, faults: Faults, view: MachineTiming, units: int) -> Fabric:
        """Return the fabric of a machine as a view shows it: the one that is in use, if there is one and few
        units ask (what many have found out must not stay when they are gone)."""
        if faults or units > MAX_UNITS_WITH_SHARED_CACHE:
            return cls(hda, faults, view)
        # It holds both: while it is there, no others have their numbers.
        return cls._shared.get((id(hda), id(view))) or cls._shared.setdefault(
            (id(hda), id(view)), cls(hda, faults, view)
        )

    def __init__(self, hda: HDA, faults: Faults, view: MachineTiming | None = None) -> None:
        self.hda = hda
        self.faults = faults
        self.view = view
        self._networks = view.networks if view else {}
        self.widths: defaultdict[Hashable, int] = defaultdict(lambda: 1)
        """How many transfers may use a resource at a time."""
        self.known: dict[Any, Any] = {}
        """Results shared by plans on one machine with the same faults."""
        self._down = faults.links_down(hda)
        self._slow = faults.links_slow(hda)
        self._alike: dict[tuple[Any, ...], list[PathGroup]] = {}

    @cached_in_owner
    def stages(self, a: Unit, b: Unit) -> tuple[Stage, ...]:
        """Return the stages between two units of the hardware; a shared memory where no network joins
        them."""
        return tuple(self._find(a, b))

    def _find(self, a: Unit, b: Unit) -> Iterator[Stage]:
        try:
            route = self.hda.route(a, b)
        except (RouteError, MissingDescriptionError):
            yield self._through_memory(a, b)
            return
        for leg in route.legs:
            numbers = [n for run in leg.runs for n in leg.network.topology.links(run)]
            links = [Link(leg.network.name, leg.owner, n) for n in numbers]
            if self._down and any(link in self._down for link in links):
                links = self._detour(a, b, leg.network, leg.owner, links)
            for hop, link in enumerate(links):
                yield self._stage(leg.network, link, first=hop == 0)

    def _stage(self, network: Network, link: Link, first: bool) -> Stage:
        network = self._networks.get(network.name, network)
        overhead = 0 if first else network.hop_overhead_ps
        speed = self._slow.get(link, 1.0)
        key: Hashable = link
        if not network.duplex:
            key = (network.name, link.owner, *sorted(network.topology.ends(link.number)))
        rate = network.effective_bandwidth * network.topology.width(link.number) / speed
        return Stage(key, max(1, network.latency_ps + overhead), rate, network.granule)

    def _through_memory(self, a: Unit, b: Unit) -> Stage:
        layer = self.hda.shared_memory(a, b)
        if layer is None:
            raise RouteError(
                f"{a} cannot reach {b}: no network joins them and they share no memory",
                advice="describe a network that joins them",
            )
        owner = self.hda.parent(a, layer.level).index
        return Stage(("memory", layer.name, owner), max(1, layer.latency_ps), layer.effective_bandwidth)

    # many at once

    @cached_in_owner
    def grid(self, level: str) -> Network | None:
        """Return the grid network that all routes between units of a level use, if its links all behave the
        same."""
        own = self.hda.level(level).total
        outer = (lv for lv in self.hda.levels if lv.total < own)
        owned = ([n for n in self.hda.networks if n.level == lv.name] for lv in outer)
        network = next((networks[0] for networks in owned if networks), None)
        if network is None or network.connects != level or not network.duplex:
            return None
        return network if isinstance(network.topology, Grid) and not (self._down or self._slow) else None

    def alike(self, level: str, a: Any, b: Any, lengths: bool = False) -> list[PathGroup]:
        """Return pairs of units of a level (arrays of their numbers), in groups of equal routes; with
        ``lengths`` of routes that take equally long, shorter ones first."""
        key = (level, a.tobytes(), b.tobytes(), lengths)
        if key not in self._alike:
            if len(self._alike) > MAX_KNOWN or len(a) > MAX_KNOWN:
                self._alike.clear()
            self._alike[key] = self._groups(level, a, b, lengths)
        return self._alike[key]

    def _groups(self, level: str, a: Any, b: Any, lengths: bool) -> list[PathGroup]:
        network, here = self.grid(level), a == b
        none = np.zeros(1, dtype=np.int64)
        found, rest = [], np.flatnonzero(~here)
        if here.any():
            pairs = np.flatnonzero(here)
            found.append(PathGroup(None, pairs, np.zeros(len(pairs), dtype=np.int64)))
        if network is not None and len(rest):
            grid: Any = network.topology
            owner, other = a[rest] // grid.size, b[rest] // grid.size
            rest, apart = rest[owner == other], rest[owner != other]
            known = shapes(grid, a[rest] % grid.size, b[rest] % grid.size)
            if known is not None:
                first = known[1] + a[rest] // grid.size * grid.link_count
                for pairs in equal(known[2 if lengths else 0]):
                    found.append(PathGroup(network, rest[pairs], first[pairs] - first[pairs[0]]))
                rest = apart
            else:
                rest = np.concatenate([rest, apart])
        found += [PathGroup(None, rest[i : i + 1], none) for i in range(len(rest))]
        return found

    # links that are down

    def _detour(self, a: Unit, b: Unit, network: Network, owner: int, links: list[Link]) -> list[Link]:
        """Return the shortest route round the links that are down, or an error that says what is cut off."""
        import networkx as nx  # heavy, and needed only when links are down

        ends = network.topology.ends
        graph = self._graph(network.name, owner)
        start, stop = ends(links[0].number)[0], ends(links[-1].number)[1]
        try:
            nodes = nx.shortest_path(graph, start, stop)
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            down = ", ".join(
                "->".join(ends(d.number))
                for d in sorted(self._down)
                if (d.network, d.owner) == (network.name, owner)
            )
            raise RouteError(
                f"{a} cannot reach {b}: {network.name} has no route left from {start} to {stop} "
                f"(down: {down})",
                advice="bring a link up, or choose units that can reach each other",
            ) from None
        return [Link(network.name, owner, graph.edges[pair]["number"]) for pair in pairwise(nodes)]

    @cached_in_owner
    def _graph(self, name: str, owner: int) -> Any:
        import networkx as nx

        graph, topology = nx.DiGraph(), self.hda.network(name).topology
        for number in range(topology.link_count):
            start, stop = topology.ends(number)
            # Link numbers beyond the edge of a grid stand for no cable and end nowhere.
            if "None" not in (start, stop) and Link(name, owner, number) not in self._down:
                graph.add_edge(start, stop, number=number)
        return graph


def equal(numbers: Any) -> list[Any]:
    """Return the places of equal numbers, in groups."""
    if not len(numbers):
        return []
    if (numbers == numbers[0]).all():
        return [np.arange(len(numbers))]
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)
