"""As many rings as there are links: Hamiltonian cycles that use every link of a full mesh equally."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import write_rings
from megatile.collectives.decompositions import gen_hamilton_circle, most_rings, partial_rings
from megatile.collectives.job import Job
from megatile.collectives.rank_groups import Cycles
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer

LARGEST = 128


def _mesh_size(job: Job) -> str | None:
    if len(job.nesting) > 1:
        return "the ranks are not on one network"
    return None if 3 <= job.ranks <= LARGEST else f"is for 3 to {LARGEST} ranks"


@algorithm("hamilton", "all_reduce", "reduce_scatter", "all_gather", unfit=_mesh_size)
def hamilton(w: Writer, chunks: int = 1) -> None:
    """n-1 rings at once, each over its own links of a full mesh."""
    write_rings(w, Cycles.of(gen_hamilton_circle(w.job.ranks)), chunks)


@algorithm("multi_ring", "all_reduce", "reduce_scatter", "all_gather", unfit=_mesh_size)
def multi_ring(w: Writer, rings: int = 2, chunks: int = 1) -> None:
    """Several rings that share no link, each with its part of the data; at most as many as there are."""
    write_rings(w, Cycles.of(partial_rings(w.job.ranks, min(rings, most_rings(w.job.ranks)))), chunks)
