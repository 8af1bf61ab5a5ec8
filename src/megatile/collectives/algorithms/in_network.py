"""Reduction done by the switch itself (NVLS, SHARP)."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import put_root_data
from megatile.collectives.blocks import piece
from megatile.collectives.job import Job
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer


def network_reduces(job: Job, level: int) -> str | None:
    """Why the network of a level cannot do the job by itself (None: it can)."""
    able = job.reduces[level] if -len(job.reduces) <= level < len(job.reduces) else ()
    wanted = "sum" if job.reduction == "avg" else job.reduction
    if job.operation in ("broadcast", "barrier"):
        return None if able else "the network does no reductions or broadcasts"
    return None if wanted in able else f"the network does not reduce '{wanted}' by itself"


def _everywhere(job: Job) -> str | None:
    if len(job.nesting) > 1:
        return "the ranks are not on one network"
    return network_reduces(job, 0)


def reduces_inside(job: Job) -> str | None:
    """Why the network inside nodes cannot reduce this job (None: it can)."""
    if len(job.nesting) != 2:
        return "needs nodes with several ranks each"
    return network_reduces(job, 0)


@algorithm("in_network", "all_reduce", "broadcast", "barrier", unfit=_everywhere, path="switch")
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
