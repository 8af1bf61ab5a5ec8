"""Machines that are not shipped, for predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megatile.hda import HDA

HBM = {
    "name": "hbm", "level": "gpu", "size": "64 GB", "bandwidth": "2 TB/s", "latency": "300 ns",
    "aliases": ["l2"],
}  # fmt: skip


def own_mesh(ranks: int, memory: Sequence[dict[str, Any]] = (HBM,), **network: str) -> HDA:
    """A full mesh that is not a shipped machine: its own speeds, no protocol."""
    return HDA.from_dict(
        {
            "name": "own",
            "hw_spec": {
                "pe": [{"name": "core", "num_units": 1}],
                "pe_groups": [{"name": "gpu", "num_units": 4}, {"name": "node", "num_units": ranks}],
            },
            "hw_abstr": [{"name": "block", "target": "core"}, {"name": "device", "target": "gpu"}],
            "memory": list(memory),
            "networks": [
                {"name": "links", "level": "node", "connects": "gpu", "topology": "full_mesh",
                 "bandwidth": "50 GB/s", "latency": "1 us", **network},
            ],
            "engines": [
                {"name": "mma", "kind": "tensor", "level": "core", "throughput": {"bf16": "50 TFLOP/s"}},
                {"name": "alu", "kind": "vector", "level": "core", "throughput": {"any": "2 TFLOP/s"}},
                {"name": "dma", "kind": "dma", "level": "gpu", "bandwidth": "1 TB/s", "startup": "1 us"},
            ],
        }
    )  # fmt: skip
