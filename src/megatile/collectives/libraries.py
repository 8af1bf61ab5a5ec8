"""What communication libraries offer: ``algorithm="nccl"`` or ``"rccl"`` chooses among their algorithms.

NCCL (``src/graph/tuning.cc``, ``src/device``): rings, one per channel and on all rails between nodes; trees
that are chains inside nodes and binary between them; in-switch reduction (NVLS) inside a node and as NVLSTree
across nodes; point-to-point operations are sent directly. RCCL on a full mesh (``tools/msccl-algorithms``,
``src/graph/rome_models.cc``): all-pairs exchange, and rings that use every link of the mesh.
"""

from __future__ import annotations

LIBRARIES = {
    "nccl": ("ring", "node_tree", "rail_rings", "in_network", "in_network_tree"),
    "rccl": ("direct", "ring", "hamilton"),
}
RING_PIECE = 24 * 512 << 10
"""A ring of a library cuts blocks larger than this: 24 channels with slots of 512 KiB (4 MiB in 8 steps)."""
POINT_TO_POINT = ("all_to_all", "gather", "scatter", "send_recv")


def offered(library: str, operation: str) -> tuple[str, ...]:
    """The algorithms with which a library does an operation."""
    return ("direct",) if operation in POINT_TO_POINT else LIBRARIES[library]
