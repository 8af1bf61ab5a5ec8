"""What a message and the start of a collective cost on a transport: pure functions of the machine and names.

A library's kernel costs one start (`head_cost`), then for each message a step and its bytes at an
achievable rate (`message_cost`). `kernel_view` is the machine as the messages of a transport see it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.hda.model import Network, Protocol
from megatile.plan.model import TRANSPORTS, Plan, Transport
from megatile.timing.library import Costs, costs, links_of, moving_kernel, networks_between
from megatile.timing.view import Origin, View

KERNELS = ("kernel", "switch", "lsu")
"""Kinds of transports that kernels do, which move data without the machine's DMA engines."""
PATH_OF = {"LL": "small", "LL128": "line", "Simple": "bulk", "NVLS": "switch", "": "bulk"}
"""The machine file's name of each protocol."""


PROTOCOL_OF = {path: protocol for protocol, path in PATH_OF.items() if protocol}


class MessageCost(NamedTuple):
    """What one message costs: how long it occupies the links, and what it waits besides."""

    busy_ps: float
    latency_ps: int


def model_of(plan: Plan) -> str:
    """Return the names of the models that time a plan's communication: ``NCCL ring, LL``."""
    named = [transport.model_name() for transport in plan.transports]
    return " and ".join(dict.fromkeys(named)) or TRANSPORTS["copy_engine"]


def library_of(hda: HDA) -> str | None:
    """Return the communication library of a machine's devices; None where its file describes none."""
    if hda.protocol is None:
        return None
    outside = networks_between(hda, "device")
    return "rccl" if outside and outside[0].topology.kind == "full_mesh" else "nccl"


def protocol_of(hda: HDA, scale: str) -> Protocol | None:
    """Return the protocol of collectives among the units of a scale; None inside a device."""
    inside = hda.level(hda.scale(scale).level).position < hda.level(hda.scale("device").level).position
    return None if inside else hda.protocol


def _paid(hda: HDA, transport: Transport) -> tuple[Costs, str]:
    path = PATH_OF.get(transport.protocol, "bulk")
    return costs(hda, path, transport.algorithm), path


def message_cost(
    hda: HDA, transport: Transport, nbytes: int, ranks: int, near: bool, network: Network | None = None
) -> MessageCost:
    """Return what a message of ``nbytes`` costs between devices of a node (``near``), or over a further
    network."""
    outside = networks_between(hda, "device")
    network = network or outside[0 if near else -1]
    paid, path = _paid(hda, transport)
    share = paid.share if near else paid.wire * network.share
    if near and transport.channels is not None and hda.library.filling:
        share = min(share, paid.wire * transport.channels / hda.library.filling)
    busy = nbytes * 1e12 / (network.effective_bandwidth * share)
    if near:
        return MessageCost(busy, 0 if path == "switch" else paid.step_ps)
    return MessageCost(busy, network.latency_ps * links_of(network) + paid.step_ps + paid.far_step_ps)


def head_cost(hda: HDA, transport: Transport, operation: str, ranks: int, nbytes: int) -> int:
    """Return the picoseconds that a rank spends once in a collective, before its first message."""
    if transport.kind not in ("kernel", "switch") or hda.protocol is None:
        return 0
    paid, path = _paid(hda, transport)
    saved = _steps_saved(hda, transport, operation, ranks, nbytes) * paid.step_ps if path == "small" else 0
    return max(0, paid.start_ps - round(saved))


def launch_floor_ps(hda: HDA, transport: Transport) -> int:
    """Return the host's time from one collective to the next: none that the host launches is shorter."""
    return (
        hda.protocol.launch_ps if hda.protocol is not None and transport.kind in ("kernel", "switch") else 0
    )


def _steps_saved(hda: HDA, transport: Transport, operation: str, ranks: int, nbytes: int) -> float:
    """Steps that a library's ring all-reduce of few bytes saves because some of its blocks are empty.

    The first rank of a block has its sum back after n steps, and begins the next all-reduce while the sum
    still goes round. Another rank that begins a block waits for the sum longer, at most 2(n-1) steps, from
    the rank two ahead of it. With m ranks that wait for each other so, it takes 2n - n/m steps.
    """
    block = hda.library.ring_block
    outside = networks_between(hda, "device")
    inside = hda.level(hda.scale("device").level).total // hda.level(outside[0].level).total if outside else 1
    ring = (transport.algorithm, operation) == ("ring", "all_reduce") and ranks <= inside
    if not ring or block is None or transport.library not in ("nccl", "rccl"):
        return 0.0
    blocks = min(ranks, ceil(nbytes / block))
    return 2 * (ranks - 1) - ring_steps(ranks, blocks) if blocks else 0.0


def ring_steps(ranks: int, blocks: int) -> float:
    """Return the steps per ring all-reduce where one follows another and ``blocks`` blocks have data."""
    return min(2 * (ranks - 1), 2 * ranks - ranks / ceil(blocks / 2))


def kernel_view(hda: HDA, scale: str, transport: Transport, nbytes: int = 0, ranks: int = 0) -> View:
    """Return the machine as messages of ``nbytes`` of a transport see it."""
    if transport.kind not in ("kernel", "switch") or protocol_of(hda, scale) is None:
        return _wires(hda, scale)
    outside = networks_between(hda, scale)
    seen: list[tuple[float, int]] = []
    for network in outside:
        near, size = network.level == outside[0].level, max(1, nbytes)
        cost = message_cost(hda, transport, size, ranks, near, network)
        rate = size * 1e12 / cost.busy_ps if cost.busy_ps > 0 else float("inf")
        # Rounded, so that messages of all sizes share a view where the rate is the same.
        seen.append((float(f"{rate / network.bandwidth:.12g}"), max(1, cost.latency_ps // links_of(network))))
    return _kernels(hda, scale, tuple(seen))


@cached_in_owner
def _wires(hda: HDA, scale: str) -> View:
    """Where no protocol says what kernels add."""
    return View(hda.engines) if hda.protocol is None else _moved(hda, scale)


def _moved(hda: HDA, scale: str) -> View:
    return replace(View(hda.engines).with_engine(moving_kernel(hda, scale)), roofline=False)


@cached_in_owner
def _kernels(hda: HDA, scale: str, seen: tuple[tuple[float, int], ...]) -> View:
    level = hda.level(hda.scale(scale).level)
    networks: dict[str, Any] = {}
    for network, (efficiency, latency) in zip(networks_between(hda, scale), seen, strict=True):
        networks[network.name] = replace(network, efficiency=efficiency, latency_ps=latency)
    # A step is everything from data ready at the sender to data ready at the receiver, so it stands in
    # for the latencies of the memories and of the innermost network.
    counted = frozenset(m.name for m in hda.memories if m.level == level.name and not m.cache)
    spec = hda.spec.protocol
    source = str(spec.source) if spec is not None and spec.source else "protocol"
    fitted = Origin("measured", f"fitted: {source}")
    origins = {"messages": fitted, "launch": fitted, "start": fitted}
    return replace(_moved(hda, scale), networks=networks, counted=counted, origins=origins)
