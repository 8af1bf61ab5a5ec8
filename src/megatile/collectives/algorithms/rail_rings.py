"""Rings that leave a node through a different network card each, as many as a node has ranks."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import slots_between, write_rings
from megatile.collectives.job import Job
from megatile.collectives.phases.ring import Ring
from megatile.collectives.phases.staggered import staggered_all_reduce
from megatile.collectives.rank_groups import Cycles
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer

LARGEST = 1024


def _nodes(job: Job) -> str | None:
    if len(job.nesting) != 2:
        return "needs nodes with several ranks each"
    return None if job.ranks <= LARGEST else f"is for at most {LARGEST} ranks"


# Rings on all rails at once need many channels; libraries run the small path on one or few.
@algorithm("rail_rings", "all_reduce", "reduce_scatter", "all_gather", unfit=_nodes, path="bulk")
def rail_rings(w: Writer, chunks: int = 1, lag: int = 0) -> None:
    """One ring per rank of a node; each enters and leaves nodes on its own rail.

    A message between nodes takes about as long as ``lag`` steps inside one; rings that wait for one are taken
    that much later, so that they do not hold up the others (all-reduce only).
    """
    inside, nodes = w.job.nesting
    group = Cycles.of([rail_order(inside, nodes, lane) for lane in range(inside)])
    if lag and w.job.operation == "all_reduce":
        # Messages over the long way wait for their turn: as many rounds as they are handled later.
        slots = max(slots_between(chunks), chunks * (lag + 2))
        ring = Ring.over(w, group, w.blocks, chunks, slots)
        staggered_all_reduce(ring, w.own, w.sums, inside, lag)
    else:
        write_rings(w, group, chunks)


def rail_order(inside: int, nodes: int, lane: int) -> list[int]:
    """Even nodes from the lane's rank on, odd nodes back to it: messages between nodes stay on one rail."""
    order = []
    for node in range(nodes):
        ranks = [(lane + i) % inside for i in range(inside)]
        order += [node * inside + r for r in (ranks if node % 2 == 0 else reversed(ranks))]
    return order
