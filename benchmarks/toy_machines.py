"""Small made-up machines on which collectives have closed forms."""

from __future__ import annotations

from typing import Any

from megatile.hda import HDA


def chips(
    topology: str,
    count: int,
    *,
    bandwidth: str = "100 GB/s",
    latency: str = "500 ns",
    startup: str = "1 us",
    memory_latency: str = "100 ns",
    **network: Any,
) -> HDA:
    """``count`` chips on one network, each with a memory, a vector engine and a DMA engine for every link."""
    return HDA.from_dict(
        {
            "name": f"{topology}-{count}",
            "hw_spec": {
                "pe": [{"name": "chip", "num_units": 1}],
                "pe_groups": [{"name": "system", "num_units": count}],
            },
            "hw_abstr": [{"name": "device", "target": "chip"}],
            "memory": [
                {"name": "hbm", "level": "chip", "aliases": ["l2"],
                 "size": "64 GB", "bandwidth": "100 TB/s", "latency": memory_latency}
            ],
            "networks": [
                {"name": "links", "level": "system", "connects": "chip", "topology": topology,
                 "bandwidth": bandwidth, "latency": latency, **network}
            ],
            "engines": [
                {"name": "alu", "kind": "vector", "level": "chip", "throughput": {"any": "100 TFLOP/s"}},
                {"name": "ports", "kind": "dma", "level": "chip", "channels": 129, "startup": startup},
            ],
        }
    )  # fmt: skip
