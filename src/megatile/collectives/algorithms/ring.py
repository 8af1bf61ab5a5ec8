"""Rings: bandwidth-optimal, one way, both ways or over every link, in chunks that follow one another."""

from __future__ import annotations

from megatile.collectives.blocks import Blocks
from megatile.collectives.decompositions import gen_hamilton_circle, most_rings, partial_rings
from megatile.collectives.job import Job
from megatile.collectives.phases.chain import Tree, along_tree
from megatile.collectives.phases.ring import Ring
from megatile.collectives.rank_groups import AllRanks, BothWays, Cycles, RankGroup
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer, is_rank
from megatile.core.expr import unit
from megatile.plan.build import Part
from megatile.plan.model import Channel

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "send_recv")


@algorithm("ring", *OPERATIONS)
def ring(w: Writer, chunks: int = 1) -> None:
    """Each rank talks to the next one: 2(n-1) steps of a block for an all-reduce, every link equally used."""
    everybody = AllRanks(w.job.ranks)
    match w.job.operation:
        case "send_recv":
            shift(w)
        case "broadcast" | "reduce":
            w.put_root_data()
            along_tree(w, Tree(everybody, w.job.root, arity=1), Blocks(w.job.count, chunks), w.own)
        case _:
            write_rings(w, everybody, chunks)


@algorithm("ring_bidirectional", "all_reduce", "reduce_scatter", "all_gather")
def ring_bidirectional(w: Writer, chunks: int = 1) -> None:
    """Half of the data goes round each way, so both directions of every link are used."""
    everybody = AllRanks(w.job.ranks)
    write_rings(w, BothWays(w.job.ranks, 1, everybody), chunks)


def write_rings(w: Writer, group: RankGroup, chunks: int) -> None:
    """The job on the rings of a group that holds all ranks."""
    slots = slots_between(chunks) if len(w.job.nesting) > 1 else None
    Ring(w, group, w.blocks, chunks, slots).write()


def slots_between(chunks: int) -> int:
    """Messages in flight on rings over several nodes, where a step takes long: eight, as libraries have."""
    return max(8, 2 * chunks)


def shift(w: Writer) -> None:
    """Every rank sends to the next one; with a ``peer``, only the root sends, to that rank."""
    job, everything, place = w.job, w.whole(w.own), w.whole(w.output)
    if job.peer is None:
        channel = w.channel("shift", (unit - 1) % job.ranks, job.count)
        w.send(channel, everything, (unit + 1) % job.ranks)
        w.copy(place, w.receive(channel, place))
        return
    channel = w.channel("shift", job.root, job.count)
    with w.when(is_rank(job.root)):
        w.send(channel, everything, job.peer)
    with w.when(is_rank(job.peer)):
        w.copy(place, w.receive(channel, place))


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


@algorithm("ring_naive", "all_reduce")
def ring_naive(w: Writer) -> None:
    """Whole buffers go round; n-1 steps of the whole size."""
    n = w.job.ranks
    channel = w.channel("ring", (unit - 1) % n, w.job.count)
    own, total = w.whole(w.own), w.whole(w.sums)
    w.send(channel, own, (unit + 1) % n)
    if n > 2:
        _step(w, channel, own, total, n, True)
    if n > 3:
        with w.loop(1, n - 2):
            _step(w, channel, total, total, n, True)
    _step(w, channel, own if n == 2 else total, total, n, False)


def _step(w: Writer, channel: Channel, mine: Part, total: Part, n: int, on: bool) -> None:
    message = w.receive(channel, total)
    if on:
        w.send(channel, message, (unit + 1) % n)
    w.reduce(total, mine, message)
