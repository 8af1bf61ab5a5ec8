"""The machine as collective kernels see it.

Collectives on real devices do not use the copy engines: kernels move the data, with their own start-up per
message, a slower start but less overhead for large messages than for small ones, and some loss against the
link rate. The ``protocol`` section of a machine file gives these effects in a few constants; a *path*
(``bulk``, ``small``, ``switch``) is the machine with them applied. Machines without the section are as they
are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from megatile.hda import HDA
from megatile.hda.model import Network, Protocol

PATHS = ("bulk", "small", "switch")
CHANNELS = 65
"""Virtual channels of the engine that stands for the kernels: one for copies, the rest for queues."""


def paths(hda: HDA, algorithm: str) -> tuple[str, ...]:
    """The paths an algorithm can take on a machine."""
    if hda.protocol is None:
        return ("bulk",)
    if algorithm.startswith("in_network"):
        return ("switch",)
    return ("bulk", "small")


def on_path(hda: HDA, path: str, scale: str = "device") -> HDA:
    """The machine with the protocol of a path applied."""
    if hda.protocol is None:
        return hda
    return _derived(hda, path, hda.level(hda.scale(scale).level).name)


def total_ps(hda: HDA, path: str, simulated_ps: int, launch: bool = True) -> int:
    """The time of a collective whose messages take ``simulated_ps``.

    Collectives follow one another; the host's launch runs beside the one before, so it shows only where it is
    the longer of the two. Setting up in-switch reduction comes on top of the messages.
    """
    if hda.protocol is None:
        return simulated_ps
    kernel = simulated_ps + (hda.protocol.switch_step_ps if path == "switch" else 0)
    return max(hda.protocol.launch_ps, kernel) if launch else kernel


@lru_cache(maxsize=64)
def _derived(hda: HDA, path: str, level: str) -> HDA:
    protocol = hda.protocol
    assert protocol is not None
    data = hda.to_dict()
    engine = {"name": "collective_kernel", "kind": "dma", "level": level, "channels": CHANNELS}
    data["engines"] = [engine, *data.get("engines", ())]
    # Many kernels start messages at once, so a start delays its own message but not the next one: it is
    # latency at both ends, not time of an engine.
    step = {"small": protocol.small_step_ps, "switch": 0}.get(path, protocol.step_ps)
    for spec, layer in zip(data["memory"], hda.memories, strict=True):
        if layer.level == level and not layer.cache:
            spec["latency"] = f"{layer.latency_ps + step // 2} ps"
    position = hda.level(level).position
    outside = [n for n in hda.networks if hda.level(n.level).position > position]
    nearest = min((hda.level(n.level).position for n in outside), default=0)
    for spec, network in zip(data["networks"], hda.networks, strict=True):
        if network in outside:
            _apply(spec, network, protocol, path, near=hda.level(network.level).position == nearest)
    data.pop("control", None)  # launching is part of the protocol's own constants
    return HDA.from_dict(data)


def _apply(spec: dict[str, Any], network: Network, protocol: Protocol, path: str, near: bool) -> None:
    share = protocol.share
    if path == "small":
        share = protocol.small_share
    elif path == "switch":
        share = protocol.switch_share
    spec["efficiency"] = network.efficiency * share
    if not near:
        spec["latency"] = f"{network.latency_ps + protocol.far_step_ps // 2} ps"
