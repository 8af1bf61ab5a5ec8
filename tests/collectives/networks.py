"""Machines of n units on every kind of network, made by hand; None where a kind cannot have so many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isqrt
from typing import Any

import megatile as mt
from megatile.hda import HDA
from toy_machines import chips

REDUCES = ["sum", "max", "min", "prod"]


def factors(n: int, parts: int) -> list[int] | None:
    """``parts`` factors of n, near to one another and none of them 1; None if there are none."""
    if parts == 1:
        return [n] if n > 1 else None
    for low in range(isqrt(n), 1, -1):
        rest = factors(n // low, parts - 1) if n % low == 0 else None
        if rest:
            return sorted([low, *rest], reverse=True)
    return None


def grid(topology: str, n: int) -> HDA:
    """Two dimensions; a prime number of units stands in one row."""
    return chips(topology, n, dims=factors(n, 2) or [n, 1])


def cube(topology: str, n: int) -> HDA | None:
    dims = factors(n, 3)
    return chips(topology, n, dims=dims) if dims else None


def wheel(n: int) -> HDA | None:
    """A hub, a rim, and spokes to every other unit of the rim: a network of no regular kind."""
    if n < 4:
        return None
    rim = [[i, i + 1] for i in range(1, n - 1)]
    return chips("edges", n, edges=[*rim, *([0, i] for i in range(1, n, 2))])


def nested(n: int, levels: int, inside: str, between: str) -> HDA | None:
    """Chips on ``inside`` networks, these on ``between`` ones, up to ``levels`` levels."""
    sizes = factors(n, levels)
    if sizes is None:
        return None
    groups = [{"name": f"g{i}", "num_units": size} for i, size in enumerate(sizes)]
    networks: list[dict[str, Any]] = [
        {"name": f"n{i}", "level": f"g{i}", "connects": f"g{i - 1}" if i else "chip",
         "topology": between if i else inside,
         "bandwidth": f"{100 >> i} GB/s", "latency": f"{i + 1} us"}
        for i in range(levels)
    ]  # fmt: skip
    for one in networks:
        if one["topology"] == "switch":
            one["in_network_reduction"] = REDUCES
    return HDA.from_dict(
        {
            "name": f"nested-{n}",
            "hw_spec": {"pe": [{"name": "chip", "num_units": 1}], "pe_groups": groups},
            "hw_abstr": [{"name": "device", "target": "chip"}],
            "memory": [
                {"name": "hbm", "level": "chip", "aliases": ["l2"],
                 "size": "64 GB", "bandwidth": "100 TB/s", "latency": "100 ns"}
            ],
            "networks": networks,
            "engines": [
                {"name": "alu", "kind": "vector", "level": "chip", "throughput": {"any": "100 TFLOP/s"}},
                {"name": "ports", "kind": "dma", "level": "chip", "channels": 129, "startup": "1 us"},
            ],
        }
    )  # fmt: skip


def cluster(n: int) -> HDA | None:
    return mt.machine("h100-cluster", nodes=n // 8) if n % 8 == 0 else None


def sips(n: int, topology: str) -> HDA:
    """SIPs of the accelerator machine; its topologies are those of ``ccl.yaml``."""
    return mt.machine("ahbm", sips=n, sip_topology=topology)


NETWORKS: dict[str, Callable[[int], HDA | None]] = {
    "ring": lambda n: chips("ring", n),
    "line": lambda n: chips("line", n),
    "full mesh": lambda n: chips("full_mesh", n),
    "switch": lambda n: chips("switch", n),
    "reducing switch": lambda n: chips("switch", n, in_network_reduction=REDUCES),
    "tree": lambda n: chips("tree", n),
    "fat tree": lambda n: chips("fat_tree", n, arity=[4, 4, 4]),
    "mesh": lambda n: grid("mesh", n),
    "torus": lambda n: grid("torus", n),
    "mesh of three dimensions": lambda n: cube("mesh", n),
    "torus of three dimensions": lambda n: cube("torus", n),
    "wheel": wheel,
    "full meshes on a switch": lambda n: nested(n, 2, "full_mesh", "switch"),
    "switches on a ring": lambda n: nested(n, 2, "switch", "ring"),
    "rings of rings of rings": lambda n: nested(n, 3, "ring", "ring"),
    "switches of switches of switches": lambda n: nested(n, 3, "switch", "switch"),
    "rails": cluster,
    "ring of SIPs": lambda n: sips(n, "ring_1d"),
    "torus of SIPs": lambda n: sips(n, "torus_2d"),
    "mesh of SIPs": lambda n: sips(n, "mesh_2d_no_wrap"),
}


@cache
def network(name: str, n: int) -> HDA | None:
    """The machine, made once."""
    return NETWORKS[name](n)
