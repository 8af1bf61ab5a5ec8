"""The model by which NCCL chooses algorithm and protocol: its own tables (``src/graph/tuning.cc``, 2.29).

NCCL prices every algorithm and protocol as a latency plus bytes over a bandwidth and takes the cheapest. The
prices are not good predictions, but the choice follows from them, so they are repeated here; what the choice
costs is in ``transports`` of the machine file. Latencies are in µs, bandwidths in GB/s, tables by generation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megatile.core.errors import did_you_mean
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

BASE_LATENCY = {"Tree": (6.8, 14.0, 8.4), "Ring": (6.6, 14.0, 8.4)}
LATENCY = {
    "nvlink": {"Tree": (0.6, 1.25, 4.0), "Ring": (0.6, 1.9, 3.4), "NVLS": 25.0, "NVLSTree": 25.0},
    "pci": {"Tree": (1.0, 1.9, 4.0), "Ring": (1.0, 2.5, 5.7), "NVLS": 0.0, "NVLSTree": 0.0},
    "net": {"Tree": (5.0, 8.5, 14.0), "Ring": (2.7, 4.0, 14.0), "NVLS": 18.0, "NVLSTree": 20.9},
}
GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
LL_MAX = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
"""LL inside a node; across nodes it depends on the host's processor."""
LL_MAX_FAR = {"intel": (39.0, 20.4), "amd": (22.5, 19.0)}
RING_LL128_CHANNEL = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE_LL128_CHANNEL = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
TREE_CHANNEL = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
NVLS_TREE_CHANNEL = {"hopper": (0.0, 57.7, 45.5), "blackwell": (0.0, 96.0, 80.0)}
NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}
LINK_RATE = {"volta": 20.0, "ampere": 20.0, "hopper": 20.6, "blackwell": 40.1}
"""What NCCL counts for one NVLink (``topo.h``)."""
NET_OVERHEAD = {"intel": 1.0, "amd": 2.0}
SPEEDS = {
    "volta": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "ampere": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
"""Bandwidths of a channel that the search of rings tries inside a node (``search.cc``)."""
FAR_SPEEDS = {
    "volta": (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "ampere": (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3),
    "blackwell": (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3),
}
DUPLICATED_FROM = 25.0
"""Channels of so many GB/s are divided into two of half the speed."""
MAX_CHANNELS = 16
TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (
        *(
            1,
            1,
            1,
            1,
            1,
            0.9,
            0.8,
            0.8,
            0.8,
            0.7,
            0.6,
            0.6,
            0.6,
            0.6,
            0.6,
            0.6,
            0.8,
            0.9,
            0.9,
            0.9,
            0.9,
            1,
            1,
        ),
    ),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7),
        *(0.7, 0.8, 0.9, 0.9),
    ),
}
"""By powers of two of the size, from 64 B on."""
RING_PLATEAU = 1.4


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
            raise TimingError(f"environment variable '{key}' has no model here", advice=advice)
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
    if not re.fullmatch(r"\d{1,6}", str(value).strip()):
        raise TimingError(f"{key} needs a whole number from 0 on, got {value!r}")
    return int(value)


def _parsed(key: str, text: Any, names: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """``Ring,Tree``, ``^NVLS`` or ``allreduce:tree;allgather:ring``, as NCCL's ``parseList`` reads it."""
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


def graphs(
    figures: TransportFigures, ranks: int, nodes: int, rate: float, card: float
) -> tuple[Graph, Graph]:
    """The channels of rings and of in-switch reduction; ``rate`` (GB/s) counts where there is no NVLink, and
    ``card`` between nodes."""
    generation = figures.generation if figures.generation in GENERATIONS else "hopper"
    total = figures.links * LINK_RATE[generation] or rate
    inside = max(1, ranks // nodes)
    if nodes == 1:
        channels, speed = max(
            ((min(MAX_CHANNELS, int(total / s)), s) for s in SPEEDS[generation] if s <= total),
            key=lambda c: (c[0] * c[1], c[1]),
            default=(1, total),
        )
        if speed >= DUPLICATED_FROM and channels < MAX_CHANNELS:
            twice = min(2 * channels, MAX_CHANNELS)
            channels, speed = twice, speed / -(-twice // channels)
        ring = Graph(channels, speed, speed)
        fitting = next((s for s in SPEEDS[generation] if s * inside <= total), total / inside)
        return ring, Graph(inside, fitting, fitting)
    cards = min(figures.cards or inside, inside)
    fitting = next(
        (s for s in FAR_SPEEDS[generation] if s <= card and s * cards <= total), min(card, total / cards)
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
    generation = figures.generation if figures.generation in GENERATIONS else "hopper"
    size, inside = np.asarray(nbytes, float), ranks / nodes
    wires = LATENCY["nvlink" if figures.links else "pci"]
    steps = {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(
        operation, ranks
    )
    many = min(nodes, 3) - 1
    ll_max = LL_MAX[generation] if nodes == 1 else LL_MAX_FAR[figures.cpu][many - 1]
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
                "LL128": min(0.92 * speed, ring.channels * RING_LL128_CHANNEL[generation]),
            }.get(protocol, speed)
            near, far = wires["Ring"][i], LATENCY["net"]["Tree" if inside == 1 else "Ring"][i]  # type: ignore[index]
            if nodes > 1:
                near = max(near, NET_OVERHEAD[figures.cpu] * (3 if protocol == "Simple" else 1))
            latency = BASE_LATENCY["Ring"][i] + (steps - crossings) * near + crossings * far
            if operation in ("broadcast", "reduce"):
                latency = BASE_LATENCY["Ring"][i] + steps * wires["Tree" if i == 2 else "Ring"][i]  # type: ignore[index]
            if protocol == "Simple" and nodes > 1 and operation == "all_reduce":
                latency = np.where(size / (figures.channels * ranks) >= 64, RING_PLATEAU, 1.0) * latency
            yield "Ring", protocol, latency + size / (1e3 * bandwidth * ranks / steps)
        if operation == "all_reduce" and settings.allows(operation, "Tree", protocol):
            bandwidth = min(0.92 * speed, ring.channels * TREE_CHANNEL[generation][many])
            if protocol == "LL":
                bandwidth = min(bandwidth / 3.8, ll_max)
            if protocol == "LL128":
                flags = 7 / 9 if nodes == 1 else 120 / 128
                bandwidth = min(bandwidth * flags, ring.channels * TREE_LL128_CHANNEL[generation][many])
            path = (inside - 1) * wires["Tree"][i] + depth * LATENCY["net"]["Tree"][i]  # type: ignore[index]
            corrected = 0.5 * bandwidth * np.asarray(TREE_CORRECTION[protocol])[power]
            yield "Tree", protocol, BASE_LATENCY["Tree"][i] + 2 * path + size / (1e3 * corrected)
    algorithm = "NVLS" if nodes == 1 else "NVLSTree"
    possible = operation == "all_reduce" or (nodes == 1 and operation in ("all_gather", "reduce_scatter"))
    if not (switched and generation in NVLS_EFFICIENCY and possible and nvls.channels > 2):
        return
    if settings.allows(operation, algorithm, "Simple"):
        each = nvls.near * NVLS_EFFICIENCY[generation] * (nvls.channels - 1) / nvls.channels
        each *= 2 if operation == "all_reduce" else (inside - 1) / inside
        if nodes > 1:
            each = min(each, nvls.far * (2 if nodes == 2 else 1), NVLS_TREE_CHANNEL[generation][many])
        bandwidth = nvls.channels * each * (ranks / steps if operation == "all_reduce" else 1)
        far = 2 * depth * LATENCY["net"]["NVLSTree"] if nodes > 1 else 0.0  # type: ignore[operator]
        yield algorithm, "Simple", LATENCY["nvlink"]["NVLS"] + far + size / (1e3 * bandwidth)  # type: ignore[operator]
