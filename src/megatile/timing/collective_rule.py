"""How long a library's collective takes: one rule over the figures in ``transports`` of a machine file.

A collective of S bytes (nccl-tests' size) among n ranks. A ring channel is a thread block that works through
its slots of b = S/n in turn: k = n - 1 of them send, 2(n - 1) in an all-reduce, and one more is a local copy
(LL: a slot as long as the others). So with b spread over the channels

    ring    start + k (step + b/link) + b/copy + fill · min(b, fill_bytes)/link
    LL      start + (k + 1) (step + first · min(x, 1) + next · max(0, ⌈x⌉ - 1)),  x = passes of a channel
    NVLS    start + S/link
    tree    start + 2 ((p - 1) step + ⌈log2 nodes⌉ far_step) + S · max(2/link, w/cards) + fill
    peers   start + (n - 1) max(step, b/link) + b/copy + fill · min((n - 1) b, fill_bytes)/link; LL: + passes

with p ranks on a node and w = 1 for two nodes, 2 for more: an inner node of the double tree sends twice S.
`head` and `message` give the same in the form that simulated Plans take it: once for each rank, and for each
message. Everything works on arrays of sizes. Times are in picoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np

from megatile.core.cached import cached_in_owner
from megatile.core.errors import MissingDescriptionError
from megatile.hda import HDA
from megatile.hda.direct import Edges
from megatile.hda.model import Network, ProtocolFigures, TransportFigures
from megatile.timing.library import SWITCHED
from megatile.timing.peer_channels import peer_channel_rate, peer_channels

WIRE = {"LL": 0.5, "MSCCL++": 0.5, "LL128": 0.9375}
"""What flags leave of the wire: LL sends 4 B of flag beside every 4 B, LL128 8 B in every 128 B."""
ROUNDS = {"all_reduce": 2}
"""How often the data pass all ranks of a ring; once unless it is said."""
PEERS = ("all_to_all", "gather", "scatter", "send_recv")
"""Operations that are sent point to point."""
CHAINS = ("broadcast", "reduce")
RING_BLOCK = 16
"""Blocks of a ring all-reduce are multiples of 16 B (NCCL ``all_reduce.h``)."""
RINGS = ("ring", "rail_rings", "hamilton")
MESHED = ("hamilton", "direct", "node_tree")
"""Algorithms that use the links to several peers of a full mesh at once."""
PREFIX = {"node_tree": "tree_", "direct": "peer_"}


class Way(NamedTuple):
    """How a library does a collective: the algorithm, the protocol and its channels (None: all)."""

    algorithm: str
    protocol: str
    channels: float | None = None


@dataclass(frozen=True)
class Fabric:
    """What ranks of a machine have between them: bytes per second of a rank's link (of each of them on a full
    mesh) and of its network card, and ranks in a node."""

    near: float
    far: float
    inside: int
    mesh: bool
    switched: bool
    latency_ps: int
    far_latency_ps: int
    wire: float = 0.0
    """Bytes per second of a rank's link at its peak."""
    lanes: tuple[int, ...] = ()
    """Where links are listed one by one: those that each of the first n ranks has to the others, by n."""
    later_ps: int = 0
    far_later_ps: int = 0
    """What a unit's neighbour, or another node, is farther than when the figures were measured."""
    far_wire: float = 0.0
    """Bytes per second of a rank's network card at its peak."""

    def nodes(self, ranks: int) -> int:
        return max(1, -(-ranks // self.inside))


@cached_in_owner
def fabric(hda: HDA, scale: str = "device") -> Fabric:
    """Return the networks around the units of a scale."""
    level = hda.level(hda.scale(scale).level)
    outside = [n for n in hda.networks if hda.level(n.level).position > level.position]
    outside.sort(key=lambda n: hda.level(n.level).position)
    if not outside:
        raise MissingDescriptionError(
            f"machine '{hda.name}' describes no network between {scale}s", advice="add one under 'networks'"
        )
    near, far = outside[0], outside[1] if len(outside) > 1 else None
    return Fabric(
        near.effective_bandwidth,
        far.effective_bandwidth if far else near.effective_bandwidth,
        level.total // hda.level(near.level).total,
        near.topology.kind == "full_mesh",
        bool(near.in_network_reduction),
        _latency_ps(near),
        _latency_ps(far) if far else 0,
        near.bandwidth,
        _lanes(near.topology) if isinstance(near.topology, Edges) else (),
        _latency_ps(near) - _latency_ps(_as_measured(near)),
        _latency_ps(far) - _latency_ps(_as_measured(far)) if far else 0,
        far.bandwidth if far else 0.0,
    )


def _lanes(topology: Edges) -> tuple[int, ...]:
    """Return rings that a library can lay on listed links: at most as many as the links of the poorest
    rank."""
    found = [1, 1]
    for n in range(2, topology.size + 1):
        degrees = [0] * n
        for a, b, cables in topology.edges:
            if a < n and b < n:
                degrees[a], degrees[b] = degrees[a] + cables, degrees[b] + cables
        found.append(max(1, min(degrees)))
    return tuple(found)


def _as_measured(network: Network) -> Network:
    latency, overhead = network.measured_latency_ps, network.measured_hop_overhead_ps
    return replace(
        network,
        latency_ps=network.latency_ps if latency is None else max(1, latency),
        hop_overhead_ps=network.hop_overhead_ps if overhead is None else overhead,
    )


def _latency_ps(network: Network) -> int:
    """From a unit to its neighbour: over a switch where there is one."""
    switched = network.topology.kind in SWITCHED
    return network.latency_ps * (2 if switched else 1) + (network.hop_overhead_ps if switched else 0)


WIRES = TransportFigures()


@dataclass(frozen=True)
class Rule:
    """The rule for one library on one machine. Without figures (`WIRES`) a message costs the wires alone."""

    figures: TransportFigures
    fabric: Fabric
    library: str = ""
    registered: bool = False
    """Buffers that are registered with the library need no local copy and no pipeline."""

    def protocol_name(self, way: Way, operation: str = "") -> str:
        """Return the entry of a protocol in the machine file; LL128 and Simple stand in for each other; "" if
        none."""
        prefix = PREFIX.get(way.algorithm, "")
        if prefix == "peer_" and operation not in ("", *PEERS):
            prefix = "pairs_"
        name = {"in_network": "NVLS", "in_network_tree": "NVLSTree"}.get(
            way.algorithm, f"{prefix}{way.protocol}"
        )
        names = (name, f"{prefix}Simple", f"{prefix}LL", way.protocol, "Simple")
        return next((each for each in names if each in self.figures.protocols), "")

    def protocol(self, way: Way, operation: str = "") -> ProtocolFigures:
        """Return the figures of a protocol on these links. Peers are sent to without waiting, and a switch
        reduces and multicasts in one go: there the start is that much later, elsewhere every step."""
        figures = self.described(way, operation)
        if way.algorithm.startswith("in_network"):
            return self.shifted(figures, ROUNDS.get(operation, 1))
        return self.shifted(figures, 1 if operation in PEERS else 0)

    def shifted(self, figures: ProtocolFigures, starts: int) -> ProtocolFigures:
        """Return figures with what the links take more or less than when these were measured, never below
        nothing: in the start, so many times, or else once in each step."""
        near, far = self.fabric.later_ps, self.fabric.far_later_ps
        if not (near or far) or not self.figures.protocols:
            return figures
        return replace(
            figures,
            start_ps=max(0, figures.start_ps + starts * near),
            step_ps=figures.step_ps if starts else max(0, figures.step_ps + near),
            far_step_ps=max(0, figures.far_step_ps + far),
        )

    def described(self, way: Way, operation: str = "") -> ProtocolFigures:
        """Return the figures of a protocol as they were measured, or else of the wires alone."""
        name = self.protocol_name(way, operation)
        if name:
            return self.figures.protocols[name]
        near, far = self.fabric.latency_ps, self.fabric.far_latency_ps
        start, step = (near, 0) if operation in PEERS else (0, near)  # peers are sent to at the same time
        return ProtocolFigures(start, step, max(0, far - near))

    def link(self, way: Way, ranks: int, operation: str = "", nbytes: Any = None) -> Any:
        """Return bytes per second that a rank sends inside a node; several links of a mesh are used at once.
        ``nbytes``: of a message to one peer alone, which few channels carry if it is short."""
        figures, links = self.protocol(way, operation), self.links(way, ranks, operation)
        rate = self.fabric.near * links * figures.share * WIRE.get(way.protocol, 1.0)
        if self.figures.channel is not None and way.channels is not None:
            rate = min(rate, self.figures.channel * way.channels)
        if operation == "send_recv" and way.protocol == "Simple" and nbytes is not None:
            return np.minimum(rate, self.message_rate(ranks, nbytes))
        return rate

    def message_rate(self, ranks: int, nbytes: Any) -> Any:
        """Return bytes per second that the channels of a message to one of ``ranks`` carry."""
        channels = self.peer_channels(ranks, nbytes)
        rate = peer_channel_rate(self.figures, self.library)
        unknown = np.full(channels.shape, np.inf)
        return np.where(channels > 0, channels * rate, unknown) if rate < np.inf else unknown

    def peer_channels(self, ranks: int, nbytes: Any) -> Any:
        """Return channels of a message to one of ``ranks``, each a thread block; 0 where the library tells
        none."""
        nodes = self.fabric.nodes(ranks)
        return peer_channels(self.figures, self.library, ranks, nbytes, nodes, self.fabric.far_wire)

    def links(self, way: Way, ranks: int, operation: str = "") -> int:
        """Return links that a rank uses at once inside a node; a message takes one of them."""
        if operation == "send_recv":
            return 1
        if self.fabric.mesh and way.algorithm in MESHED:
            return max(1, min(ranks, self.fabric.inside) - 1)
        if self.fabric.lanes and self.figures.protocols:
            return self.fabric.lanes[min(ranks, self.fabric.inside)]
        return 1

    def card(self, way: Way, operation: str = "") -> float:
        """Return bytes per second that all network cards of a node send."""
        cards = self.figures.cards or self.fabric.inside
        figures = self.protocol(way, operation)
        return self.fabric.far * figures.far_share * cards * WIRE.get(way.protocol, 1.0)

    # the parts of a time

    def slot_ps(self, way: Way, ranks: int, block: Any) -> Any:
        """Return how long the bytes of one slot of a ring occupy a rank's link."""
        figures = self.protocol(way)
        wire = np.asarray(block, float) / self.link(way, ranks) * 1e12
        if way.protocol != "LL" or figures.pass_bytes is None:
            return wire
        channels = np.clip(np.floor(block / figures.pass_bytes), 1, self.most_channels(way))
        return np.maximum(wire, passes_ps(figures, np.asarray(block, float) / channels))

    def most_channels(self, way: Way) -> float:
        return float(self.figures.channels if way.channels is None else way.channels)

    def fill_ps(self, figures: ProtocolFigures, rate: float, nbytes: Any) -> Any:
        if self.registered or figures.fill_bytes is None:
            return 0.0 * np.asarray(nbytes, float)
        return figures.fill * np.minimum(nbytes, figures.fill_bytes) / rate * 1e12

    def copy_ps(self, figures: ProtocolFigures, nbytes: Any) -> Any:
        if self.registered or figures.copy_rate is None:
            return 0.0 * np.asarray(nbytes, float)
        return np.asarray(nbytes, float) / figures.copy_rate * 1e12

    # what simulated Plans ask

    def head_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        """Return what a rank spends once, beside its messages: the start, the slot that sends nothing, the
        fill."""
        figures, size = self.protocol(way, operation), np.asarray(nbytes, float)
        if ranks < 2:
            return 0 * size
        block, link = size / ranks, self.link(way, ranks, operation, size)
        if operation in PEERS:
            sent = block * (ranks - 1) if operation != "send_recv" else size
            own = 0 * block if operation == "send_recv" else block
            extra = self.copy_ps(figures, own) + self.fill_ps(figures, link, sent)
            if way.protocol == "LL":
                extra = extra + passes_ps(figures, sent / max(1, ranks - 1))
            return figures.start_ps + extra
        if way.algorithm == "direct" or operation in CHAINS:
            return figures.start_ps + self.fill_ps(figures, link, size)
        if way.algorithm in RINGS:
            extra = self.copy_ps(figures, block) + self.fill_ps(figures, link, block)
            own_ps = self.described(way, operation).step_ps  # this slot crosses no link
            if way.protocol != "Simple":
                extra = extra + own_ps
            if way.protocol == "LL":
                saved = self.saved_steps(operation, ranks, size)
                extra = (
                    own_ps
                    + self.slot_ps(way, ranks, block)
                    - saved * (figures.step_ps + self.slot_ps(way, ranks, block))
                )
            return figures.start_ps + extra + self.far_fill_ps(way, ranks, size)
        return figures.start_ps + self.fill_ps(figures, link, size) + self.far_fill_ps(way, ranks, size)

    def saved_steps(self, operation: str, ranks: int, size: Any) -> Any:
        """Steps that a ring all-reduce of few bytes saves because some of its blocks are empty: rank 0 of a
        block has its sum back after n steps and begins the next all-reduce while the sum still travels around
        the ring."""
        if operation != "all_reduce":
            return 0.0 * np.asarray(size, float)
        blocks = np.clip(np.ceil(np.asarray(size, float) / RING_BLOCK), 1, ranks)
        steps = np.minimum(2 * (ranks - 1), 2 * ranks - ranks / np.ceil(blocks / 2))
        return np.maximum(0.0, 2 * (ranks - 1) - steps)

    def far_fill_ps(self, way: Way, ranks: int, size: Any) -> Any:
        figures = self.protocol(way)
        if self.fabric.nodes(ranks) == 1 or figures.far_fill_bytes is None:
            return 0.0 * np.asarray(size, float)
        return figures.far_fill * np.minimum(size, figures.far_fill_bytes) / self.card(way) * 1e12

    def message_ps(
        self, way: Way, ranks: int, nbytes: Any, near: bool, operation: str = ""
    ) -> tuple[Any, int]:
        """(occupied, latency) of one message: how long its bytes hold a rank's link or network card, and what
        it takes besides."""
        figures = self.protocol(way, operation)
        size = np.asarray(nbytes, float)
        if way.algorithm == "direct" and operation in PEERS:
            # One block after the other is begun, whether it stays in the node or not.
            near_peers = min(ranks, self.fabric.inside) - 1
            there = max(1, near_peers if near else ranks - 1 - near_peers)
            turns = 1 if operation == "send_recv" else max(1, ranks - 1) / there
            rate = self.link(way, ranks, operation, size) if near else self.fabric.far * figures.far_share
            return np.maximum(turns * figures.step_ps, size / rate * 1e12), 0 if near else figures.far_step_ps
        if not near:
            rate = self.fabric.far * figures.far_share * WIRE.get(way.protocol, 1.0)
            return size / rate * 1e12, figures.step_ps + figures.far_step_ps
        if way.algorithm in RINGS:
            return self.slot_ps(way, ranks, size), figures.step_ps
        return size / self.link(way, ranks, operation) * 1e12, figures.step_ps

    # the closed form

    def time_ps(self, way: Way, operation: str, ranks: int, nbytes: Any) -> Any:
        """Return the time of a whole collective on an idle machine, without the host's launch."""
        size = np.asarray(nbytes, float)
        if ranks < 2:
            return 0 * size
        figures, nodes = self.protocol(way, operation), self.fabric.nodes(ranks)
        head, link = self.head_ps(way, operation, ranks, size), self.link(way, ranks, operation)
        inside = ranks / nodes
        if operation in PEERS:
            return head + self._peers_ps(way, figures, operation, ranks, nodes, size)
        if operation in CHAINS:
            rate = min(link, self.card(way)) if nodes > 1 else link
            return (
                head + (ranks - 1) * figures.step_ps + (nodes - 1) * figures.far_step_ps + size / rate * 1e12
            )
        rounds = ROUNDS.get(operation, 1)
        if way.algorithm == "direct":  # all pairs: every rank sends a block to every other one, in each round
            return head + rounds * (figures.step_ps + size / ranks * (ranks - 1) / link * 1e12)
        if way.algorithm in RINGS:
            steps = rounds * (ranks - 1)
            slot = self.slot_ps(way, ranks, size / ranks)
            if nodes > 1:  # of the rings of a node one enters each rank by its card, not by its links
                slot = np.maximum(slot * (inside - 1) / inside, size / ranks / self.card(way) * 1e12)
            return (
                head
                + steps * (figures.step_ps + slot)
                + ceil(steps / inside) * figures.far_step_ps * (nodes > 1)
            )
        depth, weight = ceil(log2(nodes)), min(nodes - 1, 2)
        far_ps = weight * size / self.card(way) * 1e12 if nodes > 1 else 0 * size
        if way.algorithm == "in_network":
            return head + size * (1 if rounds == 2 else (ranks - 1) / ranks) / link * 1e12
        if way.algorithm == "in_network_tree":
            return head + 2 * depth * figures.far_step_ps + np.maximum(far_ps, size / link * 1e12)
        if way.algorithm == "node_tree":
            path = 2 * ((inside - 1) * figures.step_ps + depth * figures.far_step_ps)
            return head + path + self.tree_ps(way, figures, size, link, far_ps, 2 * (inside - 1 + depth))
        # hierarchical: scattered in the node, rings over the nodes on every card, gathered again
        near_ps = rounds * (inside - 1) / inside * size / (self.fabric_rate(figures, inside)) * 1e12
        around = rounds * (nodes - 1) / nodes * size / self.card(way) * 1e12
        path = rounds * ((inside - 1) * figures.step_ps + (nodes - 1) * figures.far_step_ps)
        return head + path + np.maximum(near_ps, around)

    def fabric_rate(self, figures: ProtocolFigures, inside: float) -> float:
        links = max(1, inside - 1) if self.fabric.mesh else 1
        return self.fabric.near * figures.share * links

    def tree_ps(
        self, way: Way, figures: ProtocolFigures, size: Any, link: float, far_ps: Any, steps: float
    ) -> Any:
        """Bytes of a tree: every rank passes all of them up and down, the first ones in every step."""
        moved = np.maximum(2 * size / link * 1e12, far_ps)
        if way.protocol != "LL" or figures.pass_bytes is None:
            return moved
        channels = np.clip(np.floor(size / figures.pass_bytes), 1, self.most_channels(way))
        passes = size / channels / figures.pass_bytes
        following = np.maximum(0, np.ceil(passes) - 1) * figures.next_ps
        return steps * np.minimum(passes, 1) * figures.first_ps + np.maximum(moved, following)

    def _peers_ps(
        self, way: Way, figures: ProtocolFigures, operation: str, ranks: int, nodes: int, size: Any
    ) -> Any:
        block = size / ranks if operation != "send_recv" else size
        peers = 1 if operation == "send_recv" else ranks - 1
        link = self.link(way, ranks, operation, size)
        near = min(peers, self.fabric.inside - 1)
        near_ps = np.maximum(near * figures.step_ps, near * block / link * 1e12)
        if nodes == 1:
            return near_ps
        rate = self.fabric.far * figures.far_share
        far_ps = max(1, peers - near) * block / rate * 1e12
        if operation == "send_recv":  # the last rank of a node sends to another one, the others inside it
            return np.maximum(near_ps, np.maximum(figures.step_ps, far_ps) + figures.far_step_ps)
        return np.maximum(peers * figures.step_ps, np.maximum(near_ps, far_ps)) + figures.far_step_ps


def passes_ps(figures: ProtocolFigures, nbytes: Any) -> Any:
    """Return how long the threads of a channel pass over bytes of LL; without ``next`` all passes take
    equally long."""
    if figures.pass_bytes is None:
        return 0.0 * np.asarray(nbytes, float)
    passes = np.asarray(nbytes, float) / figures.pass_bytes
    if not figures.next_ps:
        return passes * figures.first_ps
    return np.minimum(passes, 1) * figures.first_ps + np.maximum(0, np.ceil(passes) - 1) * figures.next_ps
