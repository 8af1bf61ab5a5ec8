"""Recursive halving and doubling: log2(n) rounds with partners at distance 1, 2, 4, …"""

from __future__ import annotations

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.job import Job
from megatile.collectives.phases.exchange import Exchange, Fold, power_below
from megatile.collectives.rank_groups import AllRanks, NearestLast
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import unit


def _power_of_two_unless_all_reduce(job: Job) -> str | None:
    if job.operation != "all_reduce" and power_below(job.ranks) != job.ranks:
        return "needs a power of two of ranks (bruck does any number)"
    return None


@algorithm(
    "halving_doubling",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    unfit=_power_of_two_unless_all_reduce,
)
def halving_doubling(w: Writer) -> None:
    """Halve the data, then back: 2 log2(n) rounds, as few bytes as a ring.

    In an all-reduce the largest blocks go to the nearest partner; where every rank must end with its own
    block, they go to the farthest.
    """
    n = w.job.ranks
    core = power_below(n)
    whole = w.job.operation == "all_reduce"
    group = NearestLast(n, core=core) if whole and n > 2 else AllRanks(n)
    exchange = Exchange.over(w, group, Blocks(w.job.count, core))
    if w.job.operation == "reduce_scatter":
        exchange.reduce_scatter(w.own, w.sums, w.output if w.out_of_place else None)
    elif w.job.operation == "all_gather":
        if w.out_of_place:
            w.copy(w.blocks.part(w.output, unit), w.contribution())
        exchange.all_gather(w.sums)
    else:
        with Fold(w, AllRanks(n), piece(w.sums, 0, w.job.count), w.job.count).around(w.own, w.sums) as source:
            exchange.reduce_scatter(source, w.sums)
            exchange.all_gather(w.sums)


@algorithm("recursive_doubling", "all_reduce")
def recursive_doubling(w: Writer) -> None:
    """Swap whole buffers with partners at doubling distance: log2(n) rounds, for the smallest messages."""
    n = w.job.ranks
    group, everything = AllRanks(n), piece(w.sums, 0, w.job.count)
    exchange = Exchange.over(w, group, Blocks(w.job.count, power_below(n)), w.job.count)
    with Fold(w, group, everything, w.job.count).around(w.own, w.sums) as source:
        exchange.all_reduce_whole(source, w.sums, everything)
