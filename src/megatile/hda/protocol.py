"""The machine as collective kernels see it.

Collectives on real devices do not use the copy engines: kernels move the data. What they add to the wires is
modelled as communication libraries model themselves when they choose an algorithm (NCCL's ``tuning.cc``): a
collective costs one start, then a time per step on the way of the data, then bytes over an achievable rate.
A *path* is a way to send: ``small`` puts a flag beside every word, so a step is short and half of the wire is
lost (LL); ``bulk`` synchronises once per message (Simple); ``switch`` lets the switch reduce (NVLS). The
``protocol`` section of a machine file gives the constants; machines without it are as they are. Collectives
of units inside a device (warps, blocks) are part of a kernel that runs already: they pay for the wires alone.

A ``Plan`` names its path (``Plan.path``), so that whoever times it sees the same machine.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from megatile.hda.hda import HDA
from megatile.hda.model import Network, Protocol

PATHS = ("bulk", "small", "switch")
AUTO = "auto"
"""In place of a path: the faster of bulk and small."""
CHANNELS = 65
"""Virtual channels of the engine that stands for the kernels: one for copies, the rest for queues."""


def protocol_of(hda: HDA, scale: str) -> Protocol | None:
    """The protocol of collectives among the units of a scale, if they have one."""
    inside = hda.level(hda.scale(scale).level).position < hda.level(hda.scale("device").level).position
    return None if inside else hda.protocol


def paths(hda: HDA, path: str, scale: str = "device") -> tuple[str, ...]:
    """The paths to try on a machine: the one that is named, or both ways to send."""
    if protocol_of(hda, scale) is None:
        return ("bulk",)
    return ("bulk", "small") if path == AUTO else (path,)


def on_path(hda: HDA, path: str, scale: str = "device") -> HDA:
    """The machine with the protocol of a path applied; it has none left."""
    if hda.protocol is None:
        return hda
    path = "bulk" if path == AUTO else path
    level = hda.level(hda.scale(scale).level).name
    return _inside(hda, level) if protocol_of(hda, scale) is None else _derived(hda, path, level)


def total_ps(hda: HDA, path: str, simulated_ps: int, launch: bool = True, scale: str = "device") -> int:
    """The time of a collective whose messages take ``simulated_ps``.

    Collectives follow one another; the host's launch runs beside the one before, so it shows only where it is
    the longer of the two. The start of the kernels comes on top of the messages.
    """
    protocol = protocol_of(hda, scale)
    if protocol is None:
        return simulated_ps
    kernel = simulated_ps + (protocol.switch_step_ps if path == "switch" else protocol.start_ps)
    return max(protocol.launch_ps, kernel) if launch else kernel


def _moved_by_kernels(hda: HDA, level: str) -> dict[str, Any]:
    """The machine's description where kernels move the data; what launches them is counted elsewhere."""
    data = hda.to_dict()
    engine = {"name": "collective_kernel", "kind": "dma", "level": level, "channels": CHANNELS}
    data["engines"] = [engine, *data.get("engines", ())]
    data.pop("control", None)
    data.pop("protocol", None)
    return data


@lru_cache(maxsize=16)
def _inside(hda: HDA, level: str) -> HDA:
    return HDA.from_dict(_moved_by_kernels(hda, level))


@lru_cache(maxsize=64)
def _derived(hda: HDA, path: str, level: str) -> HDA:
    protocol = hda.protocol
    assert protocol is not None
    data = _moved_by_kernels(hda, level)
    # A step is the whole way from data ready at the sender to data ready at the receiver, so it stands in
    # for the latencies of the memories and of the innermost network.
    for spec, layer in zip(data["memory"], hda.memories, strict=True):
        if layer.level == level and not layer.cache:
            spec["latency"] = "0 ps"
    position = hda.level(level).position
    outside = [n for n in hda.networks if hda.level(n.level).position > position]
    nearest = min((hda.level(n.level).position for n in outside), default=0)
    for spec, network in zip(data["networks"], hda.networks, strict=True):
        if network in outside:
            _apply(spec, network, protocol, path, near=hda.level(network.level).position == nearest)
    return HDA.from_dict(data)


def _apply(spec: dict[str, Any], network: Network, protocol: Protocol, path: str, near: bool) -> None:
    share = {"small": protocol.small_share, "switch": protocol.switch_share}.get(path, protocol.share)
    spec["efficiency"] = network.efficiency * share
    step = protocol.small_step_ps if path == "small" else protocol.step_ps
    links = 1 if network.topology.kind == "full_mesh" else 2
    if near:
        spec["latency"] = f"{0 if path == 'switch' else step // links} ps"
    else:
        spec["latency"] = f"{network.latency_ps + (step + protocol.far_step_ps) // links} ps"
