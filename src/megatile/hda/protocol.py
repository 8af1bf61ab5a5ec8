"""The machine as collective kernels see it.

Collectives on real devices do not use the copy engines: kernels move the data. What they add to the wires is
modelled as communication libraries model themselves when they choose an algorithm (NCCL's ``tuning.cc``): a
collective costs one start, then a time per step on the way of the data, then bytes over an achievable rate.
A *path* is a way to send: ``small`` puts a flag beside every word, so a step is short and half of the wire is
lost (LL); ``line`` puts one into every line of 128 bytes (LL128); ``bulk`` synchronises once per message
(Simple); ``switch`` lets the switch reduce (NVLS). The ``protocol`` section of a machine file gives the
constants; machines without it are as they are. Collectives of units inside a device (warps, blocks) are part
of a kernel that runs already: they pay for the wires alone.

A ``Plan`` names its path (``Plan.path``), so that whoever times it sees the same machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from megatile.hda.hda import HDA
from megatile.hda.model import Network, Protocol

PATHS = ("bulk", "line", "small", "switch")
AUTO = "auto"
"""In place of a path: the fastest of those on which messages are sent."""
WIRE = {"small": 1 / 2, "line": 120 / 128}
"""What flags leave of the wire: on the small path half of it, of a line of 128 bytes all but 8."""
FILLING = 12
"""So many channels fill a link: NCCL plans that many for a node, each at most at 36.7 GB/s of 393 on Hopper
and at 20 of 274 on Ampere (``perChMaxRingLL128Bws``)."""
LINE_START = 14.0 / 6.6
"""The start of the line path beside that of the small path, as NCCL's table of latencies has them."""
LINE_STEPS = {"ring": (1.9 / 3.4, 4.0 / 2.7), "node_tree": (1.25 / 4.0, 8.5 / 5.0)}
"""By algorithm, from the same table: its step beside that of the bulk path, and its far step."""
CHANNELS = 65
"""Virtual channels of the engine that stands for the kernels: one for copies, the rest for queues."""


def protocol_of(hda: HDA, scale: str) -> Protocol | None:
    """The protocol of collectives among the units of a scale, if they have one."""
    inside = hda.level(hda.scale(scale).level).position < hda.level(hda.scale("device").level).position
    return None if inside else hda.protocol


def paths(hda: HDA, path: str, scale: str = "device", algorithm: str = "") -> tuple[str, ...]:
    """The paths to try on a machine: the one that is named, or all on which an algorithm sends messages."""
    if protocol_of(hda, scale) is None:
        return ("bulk",)
    if path != AUTO:
        return (path,)
    return ("bulk", "line", "small") if algorithm in LINE_STEPS else ("bulk", "small")


@dataclass(frozen=True)
class Costs:
    """What an algorithm pays on a path: once, per message, per message between nodes, of the link rate."""

    start_ps: int
    step_ps: int
    far_step_ps: int
    share: float


def costs(protocol: Protocol, path: str, algorithm: str = "") -> Costs:
    p = protocol
    if path == "small":
        return Costs(p.start_ps, p.small_step_ps, p.far_step_ps, p.small_share)
    if path == "switch":
        return Costs(p.switch_step_ps, p.step_ps, p.far_step_ps, p.switch_share)
    if path == "line":
        step, far = LINE_STEPS[algorithm]
        start = round(LINE_START * p.start_ps)
        return Costs(start, round(step * p.step_ps), round(far * p.far_step_ps), WIRE[path] * p.share)
    return Costs(p.start_ps, p.step_ps, p.far_step_ps, p.share)


def on_path(
    hda: HDA, path: str, scale: str = "device", algorithm: str = "", channels: float | None = None
) -> HDA:
    """The machine with the protocol of a path applied, with all or so many channels of the kernels in use; it
    has no protocol left."""
    if hda.protocol is None:
        return hda
    path = "bulk" if path == AUTO else path
    level = hda.level(hda.scale(scale).level).name
    if protocol_of(hda, scale) is None:
        return _inside(hda, level)
    paid = costs(hda.protocol, path, algorithm)
    near = paid.share if channels is None else min(paid.share, WIRE.get(path, 1.0) * channels / FILLING)
    return _derived(hda, path, level, paid, near)


def total_ps(
    hda: HDA,
    path: str,
    simulated_ps: int,
    launch: bool = True,
    scale: str = "device",
    algorithm: str = "",
) -> int:
    """The time of a collective whose messages take ``simulated_ps``.

    Collectives follow one another; the host's launch runs beside the one before, so it shows only where it is
    the longer of the two. The start of the kernels comes on top of the messages.
    """
    protocol = protocol_of(hda, scale)
    if protocol is None:
        return simulated_ps
    kernel = simulated_ps + costs(protocol, path, algorithm).start_ps
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


@lru_cache(maxsize=128)
def _derived(hda: HDA, path: str, level: str, paid: Costs, near_share: float) -> HDA:
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
            near = hda.level(network.level).position == nearest
            spec["efficiency"] = network.efficiency * (near_share if near else paid.share)
            spec["latency"] = f"{_latency_ps(network, paid, path, near)} ps"
    return HDA.from_dict(data)


def _latency_ps(network: Network, paid: Costs, path: str, near: bool) -> int:
    links = 1 if network.topology.kind == "full_mesh" else 2
    if near:
        return 0 if path == "switch" else paid.step_ps // links
    return network.latency_ps + (paid.step_ps + paid.far_step_ps) // links
