"""What a message and the start of a collective cost on a transport: pure functions of the machine and names.

A library's kernel costs one head for each rank (`head_cost`), then for each message a step and its bytes at
an achievable rate (`message_cost`); both are parts of the rule in ``collective_rule.py``. `kernel_view` is
the machine as the messages of a transport see it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

from megatile.core.cached import cached_in_owner
from megatile.hda import HDA
from megatile.hda.model import Engine, Network
from megatile.plan.model import TRANSPORTS, Collective, Compute, Plan, Start, Transport
from megatile.plan.statements import regions_of
from megatile.timing.collective_choice import library_of, rule_of
from megatile.timing.collective_rule import PEERS, Rule, Way
from megatile.timing.engine_rules import OFFERED
from megatile.timing.library import links_of, moving_kernel, networks_between
from megatile.timing.machine_timing import MachineTiming, Origin

KERNELS = ("kernel", "switch", "lsu")
"""Kinds of transports that kernels do, which move data without the machine's DMA engines."""
NO_COMMUNICATION = "no communication"
"""The name of the model of what sends no messages."""
PROTOCOLS = ("LL", "LL128", "Simple", "NVLS", "MSCCL++")


class MessageCost(NamedTuple):
    """What one message costs: how long it occupies the links, and what it waits besides."""

    busy_ps: float
    latency_ps: int


class Asked(NamedTuple):
    """What the kernel of a transport has been asked for: the head of a collective says it."""

    operation: str = ""
    ranks: int = 2


def asked_of(plan: Plan, transport: str) -> Asked:
    """Return what the first ``Start`` of a transport in a plan asks for."""
    heads = (s for body in plan.bodies for s in body if isinstance(s, Start) and s.transport == transport)
    head = next(heads, None)
    return Asked("", max(2, plan.units)) if head is None else Asked(head.collective, max(2, head.ranks))


def model_of(plan: Plan, hda: HDA) -> str:
    """Return the names of the models that time a plan's communication: ``NCCL ring, LL``."""
    named = {transport.name: transport.model_name() for transport in plan.transports}
    level = hda.level(hda.scale("device").level)
    own = any(e.kind == "dma" and e.level == level.name for e in hda.engines)
    copied, device = TRANSPORTS["copy_engine"] if own else "DMA engines", level.position
    starts = (s for body in plan.bodies for s in body if isinstance(s, Start))
    alone = {start.transport for start in starts if start.ranks < 2}
    found: list[str] = [model for name, model in named.items() if name not in alone]
    for channel in plan.channels:
        inside = hda.level(hda.scale(plan.level(channel.level).scale).level).position < device
        found.append(named.get(channel.transport or "", TRANSPORTS["channel"] if inside else copied))
    for body in plan.bodies:
        puts = (s for s in body if isinstance(s, Compute) and s.engine == "dma")
        found += [TRANSPORTS.get(s.by, copied) for s in puts if any(r.at is not None for r in regions_of(s))]
    own_groups = {group.name for group in plan.groups if group.transport is None}
    for body in plan.bodies:
        reduced = (s for s in body if isinstance(s, Collective) and s.kind != "barrier")
        if not plan.transports and any(s.group in own_groups for s in reduced):
            found.append("the network's own reduction")
    return " and ".join(dict.fromkeys(found)) or NO_COMMUNICATION


def rule_for(hda: HDA, transport: Transport, scale: str = "device") -> Rule:
    """Return the rule of the library of a transport; kernels of no library cost what those of the machine's
    do."""
    known = transport.library in hda.transports.get(hda.scale(scale).name, {})
    if transport.library in OFFERED:  # plans of before call algorithms of no library "custom"
        known = transport.algorithm in OFFERED[transport.library] and not transport.protocol
    group = transport.per_node, transport.links, transport.token, transport.experts
    return rule_of(hda, transport.library if known else "", scale, transport.registered, *group)


def has_library(hda: HDA, scale: str) -> bool:
    """Return whether the machine's file describes a library for collectives among the units of a scale."""
    return library_of(hda, scale) is not None


def way_of(transport: Transport) -> Way:
    return Way(transport.algorithm, transport.protocol or "Simple", transport.channels)


def message_cost(
    hda: HDA,
    transport: Transport,
    nbytes: int,
    asked: Asked,
    network: Network,
    near: bool,
    scale: str = "device",
) -> MessageCost:
    """Return what a message of ``nbytes`` costs on a network: between devices of a node (``near``), or
    further."""
    rule, way = rule_for(hda, transport, scale), way_of(transport)
    busy, latency = rule.message_ps(way, asked.ranks, nbytes, near, asked.operation)
    if near:  # the rule counts all links of a rank; a message takes one of them
        busy = busy * rule.links(way, asked.ranks, asked.operation)
    else:
        busy = busy * rule.fabric.far / network.effective_bandwidth
    return MessageCost(float(busy) * transport.pace, int(latency * transport.pace))


def head_cost(
    hda: HDA, transport: Transport, operation: str, ranks: int, nbytes: int, scale: str = "device"
) -> int:
    """Return the picoseconds that a rank spends once in a collective, beside its messages."""
    if transport.kind not in ("kernel", "switch") or not has_library(hda, scale):
        return 0
    found = rule_for(hda, transport, scale).head_ps(way_of(transport), operation, max(1, ranks), nbytes)
    return max(0, round(float(found)))


def launch_floor_ps(hda: HDA, transport: Transport, scale: str = "device") -> int:
    """Return the host's time from one collective to the next: none that the host launches is shorter."""
    if transport.kind not in ("kernel", "switch") or transport.captured or not has_library(hda, scale):
        return 0
    return rule_for(hda, transport, scale).figures.launch_ps


def channels_taken(hda: HDA, transport: Transport, scale: str = "device") -> int:
    """Return the channels of a library's kernel, each a thread block with a compute unit for itself."""
    if transport.kind not in ("kernel", "switch") or not has_library(hda, scale):
        return 0
    return ceil(rule_for(hda, transport, scale).most_channels(way_of(transport)))


def kernel_view(hda: HDA, scale: str, transport: Transport, nbytes: int, asked: Asked) -> MachineTiming:
    """Return the machine as messages of ``nbytes`` of a transport see it."""
    if transport.kind not in ("kernel", "switch") or not has_library(hda, scale):
        return _wires(hda, scale)
    outside, peers = networks_between(hda, scale), asked.operation in PEERS
    seen: list[tuple[float, int]] = []
    for network in outside:
        near, size = network.level == outside[0].level, max(1, nbytes)
        cost = message_cost(hda, transport, size, asked, network, near, scale)
        rate = size * 1e12 / cost.busy_ps if cost.busy_ps > 0 else network.bandwidth
        # Rounded, so that messages of all sizes share a view where the rate is the same.
        seen.append(
            (float(f"{rate / network.bandwidth:.12g}"), max(1, cost.latency_ps // links_of(network, peers)))
        )
    rule = rule_for(hda, transport, scale)
    protocol = rule.protocol_name(way_of(transport), asked.operation)
    return _kernels(hda, scale, tuple(seen), rule.library, protocol)


@cached_in_owner
def _wires(hda: HDA, scale: str) -> MachineTiming:
    """Where no library says what kernels add."""
    return MachineTiming(hda.engines) if not hda.transports else _moved(hda, scale)


def _moved(hda: HDA, scale: str) -> MachineTiming:
    engine: Engine = moving_kernel(hda, scale)
    return replace(MachineTiming(hda.engines).with_engine(engine), roofline=False)


@cached_in_owner
def _kernels(
    hda: HDA, scale: str, seen: tuple[tuple[float, int], ...], library: str, protocol: str
) -> MachineTiming:
    level = hda.level(hda.scale(scale).level)
    networks: dict[str, Any] = {}
    for network, (efficiency, latency) in zip(networks_between(hda, scale), seen, strict=True):
        networks[network.name] = replace(
            network, efficiency=efficiency, latency_ps=latency, hop_overhead_ps=0
        )
    # A step is everything from data ready at the sender to data ready at the receiver, so it stands in
    # for the latencies of the memories and of the networks.
    counted = frozenset(m.name for m in hda.memories if m.level == level.name and not m.cache)
    spec = hda.spec.transports.get(scale, {}).get(library)
    origin = _origin(spec, protocol)
    return replace(
        _moved(hda, scale),
        networks=networks,
        counted=counted,
        origins={"messages": origin, "launch": origin, "start": origin},
    )


def _origin(spec: Any, protocol: str) -> Origin:
    """Return where the figures of a library's protocol come from, as the machine file says."""
    said = spec.source if spec is not None and isinstance(spec.source, dict) else {}
    own = spec.protocols[protocol].source if spec is not None and protocol in spec.protocols else None
    text = str(said.get("protocols") or own or "transports of the machine file")
    return Origin("measured" if "fitted" in text and "estimate" not in text else "assumed", text)
