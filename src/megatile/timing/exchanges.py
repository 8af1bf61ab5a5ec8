"""How long a library takes to exchange data between devices: closed forms over ``protocol``, ``library`` and
``kernels`` of the machine file, for whole tables at once.

A collective costs a start, a time for each step of the data's path, and bytes over an achievable rate, on
the fastest of the library's paths (``library.py``): rings, one step where every device has a link to every
other one, or the switch that reduces. The simulated Plans of `collectives` know more (trees, chunks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.core.dtypes import itemsize
from megatile.core.errors import MissingDescriptionError
from megatile.hda import HDA
from megatile.hda.model import KernelFigures, Network
from megatile.timing.library import costs, paths

CHANNEL_BYTES = 4096
"""Of a rank's part, for which a library takes another channel."""
ROUNDS = {"all_reduce": 2, "all_to_all": 1, "send_recv": 1}
"""How often data pass all ranks; once unless it is said."""


def collective(hda: HDA, kind: str, ranks: Any, nbytes: Any) -> Any:
    """Microseconds of a collective; ``nbytes`` is nccl-tests' size (the whole of what is gathered, reduced
    or sent by a rank)."""
    n, size = np.asarray(ranks, float), np.asarray(nbytes, float)
    near, far = _networks(hda)
    inside = _devices(hda, near)
    nodes, rounds = np.ceil(n / inside), ROUNDS.get(kind, 1)
    mesh = near.topology.kind == "full_mesh"
    direct = mesh or kind in ("all_to_all", "send_recv")
    steps = rounds * (np.ones_like(n) if direct else n - 1)
    part = np.where(n > 1, 1.0 if kind in ("broadcast", "send_recv") else rounds * (n - 1) / n, 0.0)
    links = np.minimum(n, inside) - 1 if mesh and kind != "send_recv" else np.ones_like(n)
    bandwidth = near.bandwidth * near.efficiency * np.maximum(links, 1)
    away = np.zeros_like(n)
    if far is not None:
        together = 1 if direct else np.minimum(n, inside)
        outside = (
            far.bandwidth * far.efficiency * together / np.where(direct, 1 - inside / np.maximum(n, 1), 1)
        )
        bandwidth = np.where(nodes > 1, np.minimum(bandwidth, outside), bandwidth)
        away = rounds * (1 if direct else nodes - 1) * (nodes > 1)
    tries = []
    for path in paths(hda, "auto", "device", "" if direct else "ring"):
        if path == "small" and kind in ("all_to_all", "send_recv"):
            continue
        paid = costs(hda, path, "ring")
        share = np.full_like(n, paid.share)
        if hda.library.filling and not direct:
            channels = np.maximum(1, np.ceil(size / np.maximum(n, 1) / CHANNEL_BYTES))
            share = np.minimum(share, paid.wire * channels / hda.library.filling)
        wait = paid.start_ps + steps * (paid.step_ps or near.latency_ps) + away * paid.far_step_ps
        tries.append(wait / 1e6 + size * part / (bandwidth * share) * 1e6)
    if kind == "all_reduce" and near.in_network_reduction and hda.protocol is not None:
        paid = costs(hda, "switch")
        switched = paid.start_ps / 1e6 + size / (bandwidth * paid.share) * 1e6
        tries.append(np.where(nodes > 1, np.inf, switched))
    return np.maximum(np.min(tries, axis=0), (hda.protocol.launch_ps if hda.protocol else 1) / 1e6)


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
