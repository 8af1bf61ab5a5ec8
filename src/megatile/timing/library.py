"""What the kernels of communication libraries cost, as machine files have it, and closed forms over tables.

Collectives on real devices do not use the copy engines: kernels move the data. What they add to the wires is
modelled as communication libraries model themselves when they choose an algorithm (NCCL's ``tuning.cc``): a
collective costs one start, then a time per step on the route of the data, then bytes over an achievable rate.
A *path* is a way to send: ``small`` puts a flag beside every word, so a step is short and half of the wire is
lost (LL); ``line`` puts one into every line of 128 bytes (LL128); ``bulk`` synchronises once per message
(Simple); ``switch`` lets the switch reduce (NVLS). The sections ``protocol`` (fitted) and ``library`` (from
the libraries' sources) of a machine file give the constants; machines without ``protocol`` are as they are.

`collective` and `between_experts` are closed forms of the same over arrays of sizes, for whole tables at
once: a start, a time for each step of the data's path, and bytes over an achievable rate, on the fastest
of the paths: rings, one step where every device has a link to every other one, or the switch that reduces.
The simulated Plans of `collectives` know more (trees, chunks).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError
from megatile.hda import HDA
from megatile.hda.model import Engine, KernelFigures, Network, Protocol
from megatile.timing.view import Origin, TimingError, View

PATHS = ("bulk", "line", "small", "switch")
AUTO = "auto"
"""In place of a path: the fastest of those on which messages are sent."""


def paths(hda: HDA, path: str, algorithm: str = "") -> tuple[str, ...]:
    """The paths to try on a machine: the one that is named, or all on which an algorithm sends messages."""
    if path != AUTO:
        return (path,)
    return ("bulk", "line", "small") if algorithm in hda.library.line_step else ("bulk", "small")


@dataclass(frozen=True)
class Costs:
    """What an algorithm pays on a path: once, per message, per message between nodes, of the link rate."""

    start_ps: int
    step_ps: int
    far_step_ps: int
    share: float
    wire: float = 1.0
    """What flags leave of the wire; part of ``share``."""


def costs(hda: HDA, path: str, algorithm: str = "") -> Costs:
    p, library = hda.protocol or Protocol(), hda.library
    if path == "small":
        return Costs(p.start_ps, p.small_step_ps, p.far_step_ps, p.small_share, library.small_wire)
    if path == "switch":
        return Costs(p.switch_step_ps, p.step_ps, p.far_step_ps, p.switch_share)
    if path == "line":
        if algorithm not in library.line_step:
            raise TimingError(
                f"path 'line' of machine '{hda.name}' has no algorithm '{algorithm}'",
                advice=f"there are {', '.join(library.line_step) or 'none'}",
            )
        step, far = round(library.line_step[algorithm] * p.step_ps), library.line_far_step.get(algorithm, 1.0)
        start, wire = round(library.line_start * p.start_ps), library.line_wire
        return Costs(start, step, round(far * p.far_step_ps), wire * p.share, wire)
    return Costs(p.start_ps, p.step_ps, p.far_step_ps, p.share)


def moving_kernel(hda: HDA, scale: str) -> Engine:
    """The engine that stands for kernels that move data: one queue for copies, the rest for messages."""
    level = hda.level(hda.scale(scale).level).name
    return Engine("collective_kernel", "dma", level, channels=1 + hda.library.queues)


def networks_between(hda: HDA, scale: str) -> list[Network]:
    """The networks between the units of a scale, the innermost first."""
    level = hda.level(hda.scale(scale).level)
    outside = [n for n in hda.networks if hda.level(n.level).position > level.position]
    return sorted(outside, key=lambda n: hda.level(n.level).position)


@cached_in_owner
def bulk_view(hda: HDA, scale: str) -> View:
    """The machine as messages of kernels see it that synchronise once per message (``protocol``)."""
    if hda.protocol is None:
        return View(hda.engines)
    paid, level = costs(hda, "bulk"), hda.level(hda.scale(scale).level)
    outside, networks = networks_between(hda, scale), {}
    for network in outside:
        near, links = network.level == outside[0].level, links_of(network)
        far_ps = network.latency_ps + (paid.step_ps + paid.far_step_ps) // links
        networks[network.name] = replace(
            network,
            efficiency=network.efficiency * (paid.share if near else paid.wire * network.share),
            latency_ps=max(1, paid.step_ps // links if near else far_ps),
        )
    spec = hda.spec.protocol
    source = str(spec.source) if spec is not None and spec.source else "protocol"
    fitted = Origin("measured", f"fitted: {source}")
    return replace(
        View(hda.engines).with_engine(moving_kernel(hda, scale)),
        networks=networks,
        counted=frozenset(m.name for m in hda.memories if m.level == level.name and not m.cache),
        origins={"messages": fitted, "launch": fitted},
        roofline=False,
    )


def links_of(network: Network) -> int:
    """The links between two units that a switch or nothing stands between."""
    return 1 if network.topology.kind == "full_mesh" else 2


# --- closed forms over whole tables


def between_experts(
    hda: HDA, figures: KernelFigures, dtype: str, nodes: Any, hidden: Any, tokens: Any, topk: Any, sms: Any
) -> Any:
    """Microseconds in which some compute units send every token to the devices of its experts, or their
    results back: each unit a message (``wave``) and its bytes at a ``share`` of the link at a time."""
    near, far = _networks(hda)
    devices = np.asarray(nodes, float) * _devices(hda, near)
    reached = devices * (1 - (1 - 1 / devices) ** np.asarray(topk, float))
    messages, size = tokens * reached, np.asarray(hidden, float) * itemsize(dtype)
    by_units = messages * (figures.wave_us + size / (near.bandwidth * figures.share) * 1e6) / sms
    links = _devices(hda, near) - 1 if near.topology.kind == "full_mesh" else 1
    by_link = messages * size / (near.bandwidth * near.efficiency * links) * 1e6
    if far is not None:
        crossing = tokens * (np.asarray(nodes, float) - 1) * size / (far.bandwidth * far.efficiency) * 1e6
        by_link = np.maximum(by_link, crossing)
    return figures.start_us + np.maximum(by_units, by_link)


def _networks(hda: HDA) -> tuple[Network, Network | None]:
    """The network between the devices of a node, and the one between nodes."""
    outside = networks_between(hda, "device")
    if not outside:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no network between devices", advice="add one under 'networks'"
        )
    return outside[0], outside[1] if len(outside) > 1 else None


def _devices(hda: HDA, network: Network) -> int:
    return hda.level(hda.scale("device").level).total // hda.level(network.level).total
