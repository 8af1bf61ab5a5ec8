"""Reduction done by the switches themselves (NVLS, SHARP), alone or with a ring or tree between nodes."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import put_root_data
from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.job import Job
from megatile.collectives.party import along
from megatile.collectives.phases.chain import Tree, TreePhase, up_and_down
from megatile.collectives.phases.ring import Ring
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.plan.expr import unit


def _reduces(job: Job, level: int) -> str | None:
    able = job.reduces[level] if level < len(job.reduces) else ()
    wanted = "sum" if job.reduction == "avg" else job.reduction
    if job.operation in ("broadcast", "barrier"):
        return None if able else "the network does no reductions or broadcasts"
    return None if wanted in able else f"the network does not reduce '{wanted}' by itself"


def _everywhere(job: Job) -> str | None:
    if len(job.nesting) > 1:
        return "the ranks are not on one network"
    return _reduces(job, 0)


def _inside(job: Job) -> str | None:
    if len(job.nesting) != 2:
        return "needs nodes with several ranks each"
    return _reduces(job, 0)


@algorithm("in_network", "all_reduce", "broadcast", "barrier", unfit=_everywhere)
def in_network(w: Writer) -> None:
    """The switch reduces: every rank sends and receives each element once."""
    job = w.job
    if job.operation == "barrier":
        w.builder.barrier(w.builder.group("everybody"))
        return
    if job.operation == "broadcast":
        put_root_data(w)
        everything = piece(w.sums, 0, job.count)
        w.collective("broadcast", 0, everything, everything, job.root)
        return
    w.collective("all_reduce", 0, piece(w.own, 0, job.count), piece(w.sums, 0, job.count))


@algorithm("in_network_tree", "all_reduce", unfit=_inside)
def in_network_tree(w: Writer, chunks: int = 1, between: str = "ring") -> None:
    """The switch of each node reduces; a ring or tree joins the nodes, every rank with its own block."""
    inside, across = along(w.job.nesting)
    node = unit // inside.size
    everything = piece(w.sums, 0, w.job.count)
    w.collective("all_reduce", node, piece(w.own, 0, w.job.count), everything)
    blocks = Blocks(w.job.count, inside.size)
    if between == "ring":
        Ring.over(w, across, blocks.inside(inside.me, across.size), chunks).all_reduce(w.sums, w.sums)
    else:
        phase = TreePhase.over(w, Tree(across), blocks.inside(inside.me, chunks))
        up_and_down([phase], w.sums, w.sums)
    with w.loop(0, inside.size, "root") as root:
        block = blocks.part(w.sums, root)
        w.collective("broadcast", node, block, block, root)
