"""The model by which NCCL chooses algorithm and protocol: its own tables (``hda/libraries/nccl.yaml``).

NCCL prices every algorithm and protocol as a latency plus bytes over a bandwidth and takes the cheapest. The
prices are not good predictions, but the choice follows from them, so they are repeated here; what the choice
costs is in ``transports`` of the machine file. Latencies are in µs, bandwidths in GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.core.errors import did_you_mean
from megatile.hda.catalog import library
from megatile.hda.model import TransportFigures
from megatile.timing.machine_timing import TimingError

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
OPERATIONS = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
}
"""Our names of operations that NCCL tunes; the others are sent point to point."""


@dataclass(frozen=True)
class Settings:
    """NCCL's environment variables, as options: what may be chosen and how many channels."""

    algorithms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By function, where NCCL_ALGO says something."""
    protocols: Mapping[str, frozenset[str]] = field(default_factory=dict)
    switch: bool = True
    min_channels: int = 1
    max_channels: int = 64

    def allows(self, operation: str, algorithm: str, protocol: str) -> bool:
        function = OPERATIONS[operation]
        if algorithm in ("NVLS", "NVLSTree") and not self.switch:
            return False
        allowed = self.algorithms.get(function)
        return (allowed is None or algorithm in allowed) and protocol in self.protocols.get(
            function, frozenset(PROTOCOLS)
        )


def settings(env: Mapping[str, Any] | None) -> Settings:
    """Read NCCL's environment variables from a mapping, never from the process."""
    if env is not None and not isinstance(env, Mapping):
        advice = 'give a mapping, like env={"NCCL_ALGO": "Ring"}'
        raise TimingError(f"env={env!r} does not say which variables are set", advice=advice)
    env = dict(env or {})
    known = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", *_CHANNELS)
    for key, value in env.items():
        if key not in known:
            advice = did_you_mean(str(key), known, what="variables")
            raise TimingError(f"environment variable '{key}' is not modelled", advice=advice)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise TimingError(f"{key} needs a text or a number, got {value!r}")
    numbers = {key: _whole(key, env[key]) for key in ("NCCL_NVLS_ENABLE", *_CHANNELS) if key in env}
    channels = {"min_channels": 1, "max_channels": 64}
    for key, name in _CHANNELS.items():
        if key in numbers:
            channels[name] = max(1, numbers[key])
    return Settings(
        _parsed("NCCL_ALGO", env.get("NCCL_ALGO"), ALGORITHMS),
        _parsed("NCCL_PROTO", env.get("NCCL_PROTO"), PROTOCOLS),
        numbers.get("NCCL_NVLS_ENABLE", 2) != 0,
        **channels,
    )


_CHANNELS = {
    "NCCL_MIN_NCHANNELS": "min_channels",
    "NCCL_MAX_NCHANNELS": "max_channels",
    "NCCL_MIN_CTAS": "min_channels",
    "NCCL_MAX_CTAS": "max_channels",
}


def _whole(key: str, value: str | int) -> int:
    least, needed = (1, "positive") if _CHANNELS.get(key) == "max_channels" else (0, "non-negative")
    if not re.fullmatch(r"\d{1,6}", str(value).strip()) or int(value) < least:
        raise TimingError(f"{key} must be a {needed} integer, got {value!r}")
    return int(value)


def _parsed(key: str, text: Any, names: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Return ``Ring,Tree``, ``^NVLS`` or ``allreduce:tree;allgather:ring``, as NCCL's ``parseList`` reads
    it."""
    found: dict[str, frozenset[str]] = {}
    for number, entry in enumerate(filter(None, str(text).split(";") if text is not None else ())):
        prefix, colon, listed = entry.rpartition(":")
        functions = [f for f in FUNCTIONS if not colon or f.lower() == prefix.strip().lower()]
        if not functions or (number and not colon):
            advice = f"write one of {', '.join(FUNCTIONS)} before ':'"
            raise TimingError(f"{key} has no function '{prefix if colon else entry}'", advice=advice)
        without = listed.startswith("^")
        chosen = set()
        for word in listed.removeprefix("^").split(","):
            match = next((name for name in names if name.lower() == word.strip().lower()), None)
            if match is None:
                raise TimingError(f"{key} has no value '{word}'", advice=did_you_mean(word, names))
            chosen.add(match)
        for function in functions:
            found[function] = frozenset(names) - chosen if without else frozenset(chosen)
    return found


@dataclass(frozen=True)
class Graph:
    """Channels that NCCL's search finds: how many, and GB/s of each inside and between nodes."""

    channels: int
    near: float
    far: float


def _own(figures: TransportFigures) -> dict[str, Any]:
    """NCCL's tables for a generation of devices; Hopper's for those that it does not know."""
    known: dict[str, dict[str, Any]] = library("nccl")["generations"]
    return known.get(figures.generation, known["hopper"])


def graphs(
    figures: TransportFigures, ranks: int, nodes: int, rate: float, card: float
) -> tuple[Graph, Graph]:
    """Return the channels of rings and of in-switch reduction; ``rate`` (GB/s) counts where there is no
    NVLink, and ``card`` between nodes."""
    tables, own = library("nccl"), _own(figures)
    most, total = tables["max_channels"], figures.links * own["link"] or rate
    inside = max(1, ranks // nodes)
    if nodes == 1:
        channels, speed = max(
            ((min(most, int(total / s)), s) for s in own["speeds"] if s <= total),
            key=lambda c: (c[0] * c[1], c[1]),
            default=(1, total),
        )
        if speed >= tables["duplicated_from"] and channels < most:
            twice = min(2 * channels, most)
            channels, speed = twice, speed / -(-twice // channels)
        ring = Graph(channels, speed, speed)
        fitting = next((s for s in own["speeds"] if s * inside <= total), total / inside)
        return ring, Graph(inside, fitting, fitting)
    cards = min(figures.cards or inside, inside)
    fitting = next(
        (s for s in own["far_speeds"] if s <= card and s * cards <= total), min(card, total / cards)
    )
    return Graph(2 * cards, fitting / 2, fitting / 2), Graph(
        inside, min(fitting * cards / inside, total / inside), card
    )


def prices(
    figures: TransportFigures,
    operation: str,
    ranks: int,
    nodes: int,
    nbytes: Any,
    rate: float,
    card: float,
    switched: bool,
    settings: Settings,
) -> Iterator[tuple[str, str, Any]]:
    """NCCL's own price of every algorithm and protocol that it may take: (algorithm, protocol, µs)."""
    ring, nvls = graphs(figures, ranks, nodes, rate, card)
    tables, own = library("nccl"), _own(figures)
    base, net, cpu = tables["base_latency"], tables["latency"]["net"], tables["cpus"][figures.cpu]
    size, inside = np.asarray(nbytes, float), ranks / nodes
    wires = tables["latency"]["nvlink" if figures.links else "pci"]
    steps = {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(
        operation, ranks
    )
    many = min(nodes, 3) - 1
    ll_max = own["ll_max"] if nodes == 1 else cpu["ll_max"][many - 1]
    crossings = 0 if nodes == 1 else (2 if operation == "all_reduce" else 1) * (nodes - 1)
    speed = ring.channels * (ring.near if nodes <= 2 else ring.far)
    depth = int(np.log2(nodes))
    power = np.clip(np.log2(np.maximum(size, 64) / 64).astype(int), 0, 22)
    for i, protocol in enumerate(PROTOCOLS):
        if protocol == "LL128" and not figures.links and OPERATIONS[operation] not in settings.protocols:
            continue  # it relies on how NVLink orders stores; over PCIe it must be asked for
        if settings.allows(operation, "Ring", protocol):
            bandwidth = {
                "LL": min(ll_max, speed / 2),
                "LL128": min(tables["share"] * speed, ring.channels * own["ring_ll128_channel"]),
            }.get(protocol, speed)
            near, far = wires["Ring"][i], net["Tree" if inside == 1 else "Ring"][i]
            if nodes > 1:
                near = max(near, cpu["net_overhead"] * (3 if protocol == "Simple" else 1))
            latency = base["Ring"][i] + (steps - crossings) * near + crossings * far
            if operation in ("broadcast", "reduce"):
                latency = base["Ring"][i] + steps * wires["Tree" if i == 2 else "Ring"][i]
            if protocol == "Simple" and nodes > 1 and operation == "all_reduce":
                latency = (
                    np.where(size / (figures.channels * ranks) >= 64, tables["ring_plateau"], 1.0) * latency
                )
            yield "Ring", protocol, latency + size / (1e3 * bandwidth * ranks / steps)
        if operation == "all_reduce" and settings.allows(operation, "Tree", protocol):
            bandwidth = min(tables["share"] * speed, ring.channels * own["tree_channel"][many])
            if protocol == "LL":
                bandwidth = min(bandwidth / tables["tree_ll_divisor"], ll_max)
            if protocol == "LL128":
                flags = 7 / 9 if nodes == 1 else 120 / 128
                bandwidth = min(bandwidth * flags, ring.channels * own["tree_ll128_channel"][many])
            path = (inside - 1) * wires["Tree"][i] + depth * net["Tree"][i]
            corrected = 0.5 * bandwidth * np.asarray(tables["tree_correction"][protocol])[power]
            yield "Tree", protocol, base["Tree"][i] + 2 * path + size / (1e3 * corrected)
    algorithm = "NVLS" if nodes == 1 else "NVLSTree"
    possible = operation == "all_reduce" or (nodes == 1 and operation in ("all_gather", "reduce_scatter"))
    if not (switched and "nvls_share" in own and possible and nvls.channels > 2):
        return
    if settings.allows(operation, algorithm, "Simple"):
        each = nvls.near * own["nvls_share"] * (nvls.channels - 1) / nvls.channels
        each *= 2 if operation == "all_reduce" else (inside - 1) / inside
        if nodes > 1:
            each = min(each, nvls.far * (2 if nodes == 2 else 1), own["nvls_tree_channel"][many])
        bandwidth = nvls.channels * each * (ranks / steps if operation == "all_reduce" else 1)
        far = 2 * depth * net["NVLSTree"] if nodes > 1 else 0.0
        yield algorithm, "Simple", tables["latency"]["nvlink"]["NVLS"] + far + size / (1e3 * bandwidth)
