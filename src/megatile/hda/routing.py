"""Routes through the networks of a machine: a few runs, expanded to single links only when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from megatile.hda.model import Network
from megatile.hda.topology import Run


class Link(NamedTuple):
    """One directed link: of which network, inside which unit of the network's level, and its number there."""

    network: str
    owner: int
    number: int


class Leg(NamedTuple):
    """The part of a route that lies in one network."""

    network: Network
    owner: int
    runs: tuple[Run, ...]


class Route:
    """The way from one unit to another.

    ``legs`` is what was computed, a handful of runs; ``hops()`` lists every link; the other properties are
    arithmetic over the runs.
    """

    __slots__ = ("legs",)

    def __init__(self, legs: tuple[Leg, ...]):
        self.legs = legs

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
        """Of the narrowest link, in bytes/s; infinite where nothing is crossed.

        One cable's worth where a link bundles several: a message takes one of them.
        """
        return min((leg.network.effective_bandwidth for leg in self.legs), default=float("inf"))

    def hops(self) -> Iterator[Link]:
        """Every directed link on the way."""
        for network, owner, runs in self.legs:
            for run in runs:
                for number in network.topology.links(run):
                    yield Link(network.name, owner, number)

    def __len__(self) -> int:
        return self.hop_count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and self.legs == other.legs

    def __hash__(self) -> int:
        return hash((self.networks, self.runs))

    def __repr__(self) -> str:
        parts = [
            f"{leg.network.name}[{', '.join(f'{r.axis}×{r.hops}' for r in leg.runs)}]" for leg in self.legs
        ]
        return f"Route({' → '.join(parts) or 'same unit'})"
