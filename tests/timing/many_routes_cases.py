"""What files that test many routes share."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatile.hda import HDA


def grid(topology: str, extents: list[int], groups: int = 2) -> HDA:
    cores = int(np.prod(extents))
    network: dict[str, Any] = {
        "name": "net", "level": "chip", "connects": "core", "topology": topology, "bandwidth": "1000 GB/s",
        "latency": "100 ps", "hop_overhead": "7 ps",
    }  # fmt: skip
    if topology != "ring":
        network["dims"] = extents
    outer = {"name": "between", "level": "box", "connects": "chip", "topology": "ring",
             "bandwidth": "100 GB/s", "latency": "1 ns"}  # fmt: skip
    return HDA.from_dict(
        {
            "name": "grid",
            "hw_spec": {
                "pe": [{"name": "core", "num_units": 1}],
                "pe_groups": [{"name": "chip", "num_units": cores}, {"name": "box", "num_units": groups}],
            },
            "hw_abstr": [
                {"name": "core", "target": "core"}, {"name": "chip", "target": "chip"},
                {"name": "device", "target": "box"},
            ],
            "memory": [{"name": "local", "level": "core", "size": "1 MiB", "bandwidth": "4000 GB/s",
                        "latency": "10 ps"}],
            "networks": [network, outer],
            "engines": [
                {"name": "vec", "kind": "vector", "level": "core", "throughput": {"any": "1 TFLOP/s"}},
                {"name": "dma", "kind": "dma", "level": "core", "startup": "20 ps", "channels": 4},
            ],
        }
    )  # fmt: skip


GRIDS = [("ring", [7]), ("ring", [8]), ("mesh", [4, 3]), ("torus", [5, 4]), ("torus", [3, 3, 3])]
