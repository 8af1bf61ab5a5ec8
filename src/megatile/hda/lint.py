"""What a sound machine file leaves out, and what that does to times: notes of ``megatile machine check``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from megatile.core.quantities import format_rate, format_time
from megatile.hda.hda import HDA
from megatile.hda.model import Network

SWITCHED = ("switch", "tree", "fat_tree", "rails")
"""Topologies in which a unit has one link, whatever it sends to."""


class LintNote(NamedTuple):
    """Something that is not described: where, what follows, what to write."""

    path: str
    message: str
    advice: str


def lint(hda: HDA) -> list[LintNote]:
    """Everything that the file may leave out but that changes times, with the figure it costs."""
    return [*_without_dma(hda), *_few_channels(hda), *_without_gateway(hda), *_without_network(hda)]


def _without_dma(hda: HDA) -> Iterator[LintNote]:
    if any(engine.kind == "dma" for engine in hda.engines) or not (hda.memories or hda.networks):
        return
    start = format_time(1e6)
    yield LintNote(
        "engines",
        "no DMA engine: copies and messages start at once, one after another in a unit, at the speed of "
        f"links and memories alone (an engine with a start-up of {start} would add {start} to each)",
        "add {name: dma, kind: dma, level: …, bandwidth: …, startup: …, channels: …}",
    )


def _few_channels(hda: HDA) -> Iterator[LintNote]:
    for engine in (e for e in hda.engines if e.kind == "dma"):
        for network in hda.networks:
            links = links_of_unit(network)
            apart = max(1, min(links, engine.channels - 1))
            if network.connects == engine.level and apart < links:
                rate = network.effective_bandwidth
                yield LintNote(
                    f"engines.{engine.name}",
                    f"{engine.channels} channels serve {links} links of '{network.name}': a unit sends on "
                    f"{apart} at a time, {format_rate(apart * rate)} of {format_rate(links * rate)}",
                    f"channels: {links + 1} (one for copies, one for each link), if the hardware has them",
                )


def _without_gateway(hda: HDA) -> Iterator[LintNote]:
    by_size = sorted(hda.networks, key=lambda n: hda.level(n.level).position)
    for inner, outer in pairwise(by_size):
        inside = hda.level(inner.level).position <= hda.level(outer.connects).position
        if inside and inner.gateway is None and inner.topology.size > 1:
            hops = inner.topology.hop_count(inner.topology.size - 1, 0)
            latency = hops * inner.latency_ps + max(0, hops - 1) * inner.hop_overhead_ps
            yield LintNote(
                f"networks.{inner.name}",
                f"no gateway: what a {inner.connects} sends over '{outer.name}' does not cross "
                f"'{inner.name}' "
                f"(up to {format_time(latency)} at {format_rate(inner.effective_bandwidth)})",
                f"gateway: NUMBER, the {inner.connects} where '{outer.name}' begins, if it lies on the route",
            )


def _without_network(hda: HDA) -> Iterator[LintNote]:
    device = hda.level(hda.scale("device").level).position
    if hda.transports and not any(hda.level(n.level).position > device for n in hda.networks):
        yield LintNote(
            "transports",
            "no network joins devices: the transports of collectives among them have no effect",
            "add a network, or leave the transports out",
        )


def links_of_unit(network: Network) -> int:
    """How many links of a network a unit may send through."""
    if network.topology.kind in SWITCHED:
        return 1
    return max((len(network.topology.neighbors(i)) for i in range(min(network.topology.size, 64))), default=0)
