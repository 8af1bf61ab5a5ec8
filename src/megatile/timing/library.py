"""How communication libraries run collectives: ``simulate(plan, machine=…, timing=Library("auto", "ring"))``.

Collectives on real devices do not use the copy engines: kernels move the data. What they add to the wires is
modelled as communication libraries model themselves when they choose an algorithm (NCCL's ``tuning.cc``): a
collective costs one start, then a time per step on the route of the data, then bytes over an achievable rate.
A *path* is a way to send: ``small`` puts a flag beside every word, so a step is short and half of the wire is
lost (LL); ``line`` puts one into every line of 128 bytes (LL128); ``bulk`` synchronises once per message
(Simple); ``switch`` lets the switch reduce (NVLS). The sections ``protocol`` (fitted) and ``library`` (from
the libraries' sources) of a machine file give the constants; machines without ``protocol`` are as they are.
Collectives of units inside a device (warps, blocks) are part of a kernel that runs already: they pay for the
wires alone.

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
from megatile.core.errors import MissingDescriptionError, did_you_mean
from megatile.hda import HDA
from megatile.hda.model import Engine, KernelFigures, Network, Protocol
from megatile.timing.view import Origin, Timing, TimingError, View

PATHS = ("bulk", "line", "small", "switch")
AUTO = "auto"
"""In place of a path: the fastest of those on which messages are sent."""


@dataclass(frozen=True)
class Library(Timing):
    """Whose kernels a collective's plan stands for: the path, the algorithm, how many channels a library
    takes for the size (None: all it has), and how many steps it saves because blocks stay empty."""

    path: str = AUTO
    algorithm: str = ""
    channels: float | None = None
    steps_saved: float = 0.0

    def __post_init__(self) -> None:
        if self.path not in (*PATHS, AUTO):
            advice = did_you_mean(str(self.path), (*PATHS, AUTO), what="paths")
            raise TimingError(f"a library has no path '{self.path}'", advice=advice)
        numbers = (self.channels if self.channels is not None else 1, self.steps_saved)
        if not all(isinstance(n, (int, float)) and 0 <= n < 1e9 for n in numbers) or not numbers[0]:
            raise TimingError("a library has channels above 0 and saves steps from 0 on")

    def options(self, hda: HDA, scale: str) -> tuple[Library, ...]:
        return tuple(replace(self, path=path) for path in paths(hda, self.path, scale, self.algorithm))

    def view(self, hda: HDA, scale: str) -> View:
        if protocol_of(hda, scale) is None:
            return _wires(hda, scale)
        path = "bulk" if self.path == AUTO else self.path
        paid = costs(hda, path, self.algorithm)
        share = paid.share
        if self.channels is not None and hda.library.filling:
            share = min(share, paid.wire * self.channels / hda.library.filling)
        return _kernels(hda, scale, path, paid, share)

    def whole_ps(self, hda: HDA, scale: str, messages_ps: int, launch: bool = True) -> int:
        """Collectives follow one another; the host's launch runs beside the one before, so it shows only
        where it is the longer of the two. The start of the kernels comes on top of the messages."""
        protocol = protocol_of(hda, scale)
        if protocol is None:
            return messages_ps
        paid = costs(hda, self.path, self.algorithm)
        kernel = messages_ps - round(self.steps_saved * paid.step_ps) + paid.start_ps
        return max(protocol.launch_ps, kernel) if launch else kernel


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


@cached_in_owner
def _wires(hda: HDA, scale: str) -> View:
    """Where no protocol says what kernels add."""
    return View(hda.engines) if hda.protocol is None else _moved(hda, scale)


def _moved(hda: HDA, scale: str) -> View:
    return replace(View(hda.engines).with_engine(moving_kernel(hda, scale)), roofline=False)


@cached_in_owner
def _kernels(hda: HDA, scale: str, path: str, paid: Costs, near_share: float) -> View:
    level = hda.level(hda.scale(scale).level)
    outside = [n for n in hda.networks if hda.level(n.level).position > level.position]
    nearest = min((hda.level(n.level).position for n in outside), default=0)
    networks = {}
    for network in outside:
        near = hda.level(network.level).position == nearest
        # The protocol's shares were found on the innermost network; further out only flags cost.
        share = near_share if near else paid.wire * network.share
        networks[network.name] = replace(
            network,
            efficiency=network.efficiency * share,
            latency_ps=max(1, _latency_ps(network, paid, path, near)),
        )
    # A step is everything from data ready at the sender to data ready at the receiver, so it stands in
    # for the latencies of the memories and of the innermost network.
    counted = frozenset(m.name for m in hda.memories if m.level == level.name and not m.cache)
    spec = hda.spec.protocol
    source = str(spec.source) if spec is not None and spec.source else "protocol"
    fitted = Origin("measured", f"fitted: {source}")
    origins = {"messages": fitted, "launch": fitted}
    return replace(_moved(hda, scale), networks=networks, counted=counted, origins=origins)


def links_of(network: Network) -> int:
    """The links between two units that a switch or nothing stands between."""
    return 1 if network.topology.kind == "full_mesh" else 2


def _latency_ps(network: Network, paid: Costs, path: str, near: bool) -> int:
    links = links_of(network)
    if near:
        return 0 if path == "switch" else paid.step_ps // links
    return network.latency_ps + (paid.step_ps + paid.far_step_ps) // links


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
    device = hda.level(hda.scale("device").level)
    outside = [n for n in hda.networks if hda.level(n.level).position > device.position]
    outside.sort(key=lambda n: hda.level(n.level).position)
    if not outside:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no network between devices", advice="add one under 'networks'"
        )
    return outside[0], outside[1] if len(outside) > 1 else None


def _devices(hda: HDA, network: Network) -> int:
    return hda.level(hda.scale("device").level).total // hda.level(network.level).total
