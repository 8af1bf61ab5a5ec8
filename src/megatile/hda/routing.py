"""Routes through the networks of a machine: a few runs, expanded to single links only when asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatile.hda.model import Level, Network, Unit, UnitRange
from megatile.hda.topology import Others, Run


class Link(NamedTuple):
    """One directed link: its network, the unit of the network's level that it is in, and its number there."""

    network: str
    owner: int
    number: int


class Leg(NamedTuple):
    """The part of a route that lies in one network."""

    network: Network
    owner: int
    runs: tuple[Run, ...]

    @property
    def width(self) -> int:
        """The fewest cables of a link on it; only paths along given edges have several."""
        paths = (run for run in self.runs if run.axis == "path")
        topology = self.network.topology
        return min((topology.width(link) for run in paths for link in topology.links(run)), default=1)


@dataclass(slots=True)
class Route:
    """The path from one unit to another.

    ``legs`` is what was computed, a handful of runs; ``hops()`` lists every link; the other properties are
    arithmetic over the runs.
    """

    legs: tuple[Leg, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for leg in self.legs for run in leg.runs)

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(leg.network.name for leg in self.legs)

    @property
    def hop_count(self) -> int:
        return sum(run.hops for leg in self.legs for run in leg.runs)

    @property
    def latency_ps(self) -> int:
        """All links and the switches or routers between them; nothing for the bytes."""
        total = 0
        for network, _, runs in self.legs:
            hops = sum(run.hops for run in runs)
            total += hops * network.latency_ps + max(0, hops - 1) * network.hop_overhead_ps
        return total

    @property
    def bandwidth(self) -> float:
        """Of the narrowest link, in bytes/s; infinite where nothing is crossed. A message is spread over all
        cables of a link."""
        return min((leg.network.effective_bandwidth * leg.width for leg in self.legs), default=float("inf"))

    def hops(self) -> Iterator[Link]:
        """Yield every directed link on the route."""
        for network, owner, runs in self.legs:
            for run in runs:
                for number in network.topology.links(run):
                    yield Link(network.name, owner, number)

    def __len__(self) -> int:
        return self.hop_count

    def __hash__(self) -> int:
        return hash((self.networks, self.runs))

    def __repr__(self) -> str:
        parts = [
            f"{leg.network.name}[{', '.join(f'{r.axis}×{r.hops}' for r in leg.runs)}]" for leg in self.legs
        ]
        return f"Route({' → '.join(parts) or 'same unit'})"


class Router:
    """Finds routes between units of a machine, by division only."""

    def __init__(self, levels: Sequence[Level], networks: Sequence[Network]):
        self.networks = networks
        # Smallest units inside one unit of each level: the ancestor of a unit is a division by these.
        self.span = {level.name: levels[0].total // level.total for level in levels}
        # (span, networks) of every level that owns one, smallest first.
        self.owners = [
            (self.span[level.name], owned)
            for level in levels
            if (owned := tuple(n for n in networks if n.level == level.name))
        ]

    def route(self, a: Unit, b: Unit, via: str | None = None) -> Route | None:
        """Return the legs from ``a`` to ``b``, none at all if one holds the other, None if no network joins
        them."""
        span = self.span
        span_a, span_b = span[a[0]], span[b[0]]
        first, second = a[1] * span_a, b[1] * span_b
        largest = max(span_a, span_b)
        if first // largest == second // largest:
            return Route(())
        for size, networks in self.owners:
            if size <= largest or first // size != second // size:
                continue
            for network in networks:
                if via is not None and via != network.name:
                    continue
                ends = span[network.connects]
                inside = size // ends
                start, stop = first // ends % inside, second // ends % inside
                if start != stop:
                    leg = Leg(network, first // size, network.topology.route(start, stop))
                    if ends == span_a == span_b:
                        return Route((leg,))
                    enter = self._access(span_a, first, ends)
                    leave = self._access(span_b, second, ends, towards=True)
                    return Route((*enter, leg, *leave))
        return None

    def _access(self, smallest: int, first: int, ends: int, towards: bool = False) -> tuple[Leg, ...]:
        """Return legs through inner networks with a gateway, between a unit and the endpoint that holds
        it."""
        legs = []
        for size, networks in self.owners:
            if not smallest < size <= ends:
                continue
            gated = next((n for n in networks if n.gateway is not None), None)
            if gated is None or gated.gateway is None:
                continue
            inner = self.span[gated.connects]
            place = first // inner % (size // inner)
            ends_of_leg = (gated.gateway, place) if towards else (place, gated.gateway)
            if runs := gated.topology.route(*ends_of_leg):
                legs.append(Leg(gated, first // size, runs))
        return tuple(reversed(legs)) if towards else tuple(legs)

    def neighbors(self, unit: Unit, via: str | None = None) -> UnitRange:
        """Return units one link or one switch away; lazy where one network gives them all."""
        parts: list[Sequence[int]] = []
        for network in self.networks:
            if network.connects != unit.level or via not in (None, network.name):
                continue
            size = network.topology.size
            base = unit.index // size * size
            near = network.topology.neighbors(unit.index - base)
            parts.append(near.shifted(base) if isinstance(near, Others) else [base + n for n in near])
        if len(parts) == 1:
            return UnitRange(unit.level, parts[0])
        return UnitRange(unit.level, list(dict.fromkeys(index for part in parts for index in part)))

    def bisection(self, level: Level) -> float | None:
        """Of the outermost network that joins units of a level; 0 for a single unit, None without one."""
        if level.total == 1:
            return 0.0
        for size, networks in reversed(self.owners):
            if size > self.span[level.name]:
                # A network with one endpoint in each part (rails of a single node) joins nothing.
                width = max(network.bisection() for network in networks)
                if width:
                    return width
        return None
