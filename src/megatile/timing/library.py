"""What kernels that move data see of a machine.

Data between devices are moved by kernels, not by the copy engines. `exchange_view` is the machine for
kernels that send point to point (the exchanges of attention); collectives are in ``transports.py``.
"""

from __future__ import annotations

from dataclasses import replace

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.hda.model import Engine, Network, ProtocolFigures
from megatile.timing.machine_timing import MachineTiming, Origin

MESSAGES = 64
"""Messages of a unit that are under way side by side: they never wait for one of the kernels."""
PEERS = "peer_Simple"
SWITCHED = ("switch", "tree", "fat_tree", "rails")


def moving_kernel(hda: HDA, scale: str, start_ps: int = 0, message_rate: float | None = None) -> Engine:
    """Return the engine that models data-moving kernels: one queue for copies, the rest for messages, which
    begin after ``start_ps`` and go at ``message_rate`` (B/s) at most."""
    level = hda.level(hda.scale(scale).level).name
    return Engine(
        "collective_kernel", "dma", level, bandwidth=message_rate, startup_ps=start_ps, channels=1 + MESSAGES
    )


def networks_between(hda: HDA, scale: str) -> list[Network]:
    """Return the networks between the units of a scale, the innermost first."""
    level = hda.level(hda.scale(scale).level)
    outside = [n for n in hda.networks if hda.level(n.level).position > level.position]
    return sorted(outside, key=lambda n: hda.level(n.level).position)


def exchange_figures(hda: HDA, scale: str) -> tuple[str, ProtocolFigures] | None:
    """Return the library that sends point to point between the units of a scale, and its figures."""
    for library, figures in hda.transports.get(hda.scale(scale).name, {}).items():
        if PEERS in figures.protocols or "Simple" in figures.protocols:
            return library, figures.protocols.get(PEERS) or figures.protocols["Simple"]
    return None


@cached_in_owner
def exchange_view(hda: HDA, scale: str) -> MachineTiming:
    """Return the machine as messages of kernels see it that send point to point; their start comes on top."""
    found = exchange_figures(hda, scale)
    if found is None:
        return MachineTiming(hda.engines)
    library, paid = found
    outside, networks = networks_between(hda, scale), {}
    for network in outside:
        near, links = network.level == outside[0].level, links_of(network, peers=True)
        far_ps = network.latency_ps + (paid.step_ps + paid.far_step_ps) // links
        networks[network.name] = replace(
            network,
            efficiency=network.efficiency * (paid.share if near else paid.far_share),
            latency_ps=max(1, paid.step_ps // links if near else far_ps),
        )
    level = hda.level(hda.scale(scale).level)
    spec = hda.spec.transports[hda.scale(scale).name][library].protocols.get(PEERS)
    said = str(spec.source) if spec is not None and spec.source else f"transports.{library}"
    origin = Origin("measured" if "fitted" in said and "estimate" not in said else "assumed", said)
    return replace(
        MachineTiming(hda.engines).with_engine(moving_kernel(hda, scale)),
        networks=networks,
        counted=frozenset(m.name for m in hda.memories if m.level == level.name and not m.cache),
        origins={"messages": origin, "launch": origin},
        roofline=False,
        side_by_side=True,
    )


def links_of(network: Network, peers: bool = False) -> int:
    """Return the links between two units that a switch or nothing stands between; with ``peers`` of different
    rails too, these over two more."""
    if peers and network.topology.kind == "rails":
        return 4
    return 2 if network.topology.kind in SWITCHED else 1
