"""Grids: one ring phase per dimension, so that messages go to neighbours only."""

from __future__ import annotations

from megatile.collectives.algorithms.hierarchical import nested
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer


@algorithm("by_dimension", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
def by_dimension(w: Writer, chunks: int = 1, both_ways: bool = False) -> None:
    """Rings along x, then y, … of the grid the ranks stand on (a mesh or a torus)."""
    nested(w, w.job.grid, chunks=chunks, both_ways=both_ways)
