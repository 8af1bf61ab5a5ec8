"""Decompositions of networks into rings and paths that load every link equally. Pure Python and NumPy."""

from __future__ import annotations

from megatile.collectives.decompositions.cycles import (
    doubled_cycles,
    gen_hamilton_circle,
    most_rings,
    partial_rings,
)
from megatile.collectives.decompositions.families import (
    CycleFamily,
    DecompositionError,
    PathFamily,
    arc_counts,
    verify_cycles,
)
from megatile.collectives.decompositions.mappings import (
    calculate_in_mapping_circle,
    calculate_inter_node_mapping,
    calculate_intra_node_in_mapping_two_nodes,
    calculate_intra_node_out_mapping_two_nodes,
    calculate_out_mapping_circle,
    calculate_source_rank_per_iter,
    cycles_from_mappings,
    source_ranks,
)
from megatile.collectives.decompositions.networks import (
    NetworkRings,
    full_mesh_rings,
    mesh_rings,
    network_rings,
    topology_rings,
    torus_rings,
)
from megatile.collectives.decompositions.paths import (
    gen_hamilton_circle_two_nodes,
    gen_hamilton_path_local,
    ranks_per_node,
    verify_two_nodes,
)

__all__ = [
    "CycleFamily",
    "DecompositionError",
    "NetworkRings",
    "PathFamily",
    "arc_counts",
    "calculate_in_mapping_circle",
    "calculate_inter_node_mapping",
    "calculate_intra_node_in_mapping_two_nodes",
    "calculate_intra_node_out_mapping_two_nodes",
    "calculate_out_mapping_circle",
    "calculate_source_rank_per_iter",
    "cycles_from_mappings",
    "doubled_cycles",
    "full_mesh_rings",
    "gen_hamilton_circle",
    "gen_hamilton_circle_two_nodes",
    "gen_hamilton_path_local",
    "mesh_rings",
    "most_rings",
    "network_rings",
    "partial_rings",
    "ranks_per_node",
    "source_ranks",
    "topology_rings",
    "torus_rings",
    "verify_cycles",
    "verify_two_nodes",
]
