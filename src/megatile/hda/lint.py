"""Missing entries of a machine file and their effect on times: notes of ``megatile machine check``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from megatile.core.quantities import format_rate, format_time
from megatile.hda.hda import HDA
from megatile.hda.model import ALIAS_USES, Network

SWITCHED = ("switch", "tree", "fat_tree", "rails")
"""Topologies in which a unit has one link, whatever it sends to."""


class LintNote(NamedTuple):
    """Something that is not described: where, what follows, what to write."""

    path: str
    message: str
    advice: str


def lint(hda: HDA) -> list[LintNote]:
    """Return everything that the file may leave out but that changes times, with the figure it costs."""
    checks = (_without_alias, _without_tensor, _without_dma, _few_channels, _off_network, _without_gateway,
              _without_network)  # fmt: skip
    return [note for check in checks for note in check(hda)]


def _runs_tiles(hda: HDA) -> bool:
    """Return whether the machine describes what blocks of tile programs run on."""
    return bool(hda.memories) and any("block" in (s.name, *s.aliases) for s in hda.spec.hw_abstr)


def _without_alias(hda: HDA) -> Iterator[LintNote]:
    for alias, use in ALIAS_USES.items() if _runs_tiles(hda) else ():
        found = hda.memory_names.get(alias)
        if found is None or alias not in (found.name, *found.aliases):
            effect = f"they lie in '{found.name}'" if found else "tile programs that need it are refused"
            yield LintNote(
                "memory",
                f"no memory is called '{alias}', which holds {use}: {effect}",
                f"add 'aliases: [{alias}]' to the memory that holds them",
            )


def _without_tensor(hda: HDA) -> Iterator[LintNote]:
    if _runs_tiles(hda) and not any(engine.kind == "tensor" for engine in hda.engines):
        other = next((e.name for e in hda.engines if e.kind == "vector"), None)
        yield LintNote(
            "engines",
            "no tensor engine: " + (f"GEMMs run on '{other}'" if other else "GEMMs are refused"),
            "add {name: mma, kind: tensor, level: …, throughput: {f16: …}}",
        )


def _off_network(hda: HDA) -> Iterator[LintNote]:
    """Loads from device memory cross a network only where each unit has a slice and names another's."""
    layer = hda.memory_names.get("l2")
    if layer is None or not _runs_tiles(hda) or any(m.of == layer.name for m in hda.memories):
        return
    for network in hda.networks:
        ends, rate = network.connects, network.effective_bandwidth
        inside = network.level == layer.level and ends == hda.scale("block").level and layer.shared
        movers = [e for e in hda.engines if e.kind == "dma" and e.level == ends]
        limited = movers and all(e.bandwidth and e.bandwidth <= rate for e in movers)
        if inside and layer.slices < network.topology.size > 1 and not limited:
            yield LintNote(
                f"networks.{network.name}",
                f"loads from '{layer.name}' do not cross '{network.name}': only messages between units of "
                f"'{ends}' do",
                f"if loads use it, limit those of each {ends}: bandwidth: {format_rate(rate)} in its DMA "
                "engine, with the latency of the network added to its latency",
            )


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
    """Return how many links of a network a unit may send through."""
    if network.topology.kind in SWITCHED:
        return 1
    return max((len(network.topology.neighbors(i)) for i in range(min(network.topology.size, 64))), default=0)
