"""log2(n) rounds with partners at distance 1, 2, 4, …: recursive halving and doubling, and Bruck's."""

from __future__ import annotations

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.job import CollectiveError, Job
from megatile.collectives.phases.exchange import Exchange, Skips, folded, power_below, rounds_of
from megatile.collectives.rank_groups import all_ranks, nearest_last
from megatile.collectives.registry import algorithm, needs
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, expr, maximum, member, unit


@algorithm(
    "halving_doubling",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    unfit=needs(
        (
            lambda job: job.operation == "all_reduce" or power_below(job.ranks) == job.ranks,
            "needs a power of two of ranks (bruck does any number)",
        )
    ),
)
def halving_doubling(w: Writer, near: bool = False) -> None:
    """Halve the data, then back: 2 log2(n) rounds, as few bytes as a ring.

    In an all-reduce the largest blocks go to the nearest partner; where every rank must end with its own
    block, they go to the farthest, or with ``near`` to the nearest, at the price of a copy of all blocks.
    """
    n = w.job.ranks
    if near and w.job.operation != "all_reduce":
        _with_a_copy(w)
        return
    core = power_below(n)
    whole = w.job.operation == "all_reduce"
    group = nearest_last(n, core) if whole and n > 2 else all_ranks(n)
    exchange = Exchange(w, group, Blocks(w.job.count, core))
    if not whole:
        exchange.write()
        return
    with folded(w, all_ranks(n)) as source:
        exchange.all_reduce(source, w.sums)


def _with_a_copy(w: Writer) -> None:
    """Blocks in the order of positions lie side by side in a buffer of their own: copied there before they
    are reduced, or back after they are gathered."""
    job, blocks = w.job, w.blocks
    n = job.ranks
    if job.count % n:
        raise CollectiveError(
            f"halving_doubling(near=True) needs blocks of one size, and {n} ranks share {job.count} elements"
        )
    group, scatters = nearest_last(n, n), job.operation == "reduce_scatter"
    ordered = w.sums if scatters and w.out_of_place else w.tile("ordered", (job.count,))
    exchange = Exchange(w, group, blocks)
    if scatters:
        # Those that are sent first are copied first.
        first = (group.me ^ (n // 2)) // max(1, n // 2) * (n // 2)
        with w.loop(0, n, "block") as k:
            place = (first + k) % n
            w.copy(blocks.part(ordered, place), blocks.part(w.own, group.unit_at(place)))
        exchange.reduce_scatter(ordered, ordered, w.output if w.out_of_place else None)
        if not w.out_of_place:
            w.copy(blocks.part(w.own, unit), blocks.part(ordered, group.me))
        return
    w.copy(blocks.part(ordered, group.me), w.contribution())
    exchange.all_gather(ordered)
    with w.loop(0, n, "block") as k:
        w.copy(blocks.part(w.output, group.unit_at(k)), blocks.part(ordered, k))


@algorithm("recursive_doubling", "all_reduce")
def recursive_doubling(w: Writer) -> None:
    """Swap whole buffers with partners at doubling distance: log2(n) rounds, for the smallest messages."""
    n = w.job.ranks
    group = all_ranks(n)
    exchange = Exchange(w, group, Blocks(w.job.count, power_below(n)), w.job.count)
    with folded(w, group) as source:
        exchange.all_reduce_whole(source, w.sums)


# --- partners 1, 2, 4, … ranks further, for any number of ranks (Bruck et al.) ---


def _equal_blocks(job: Job) -> str | None:
    if job.operation == "all_to_all" and job.count % job.ranks:
        return f"{job.count} elements over {job.ranks} ranks are uneven"
    return None


@algorithm("bruck", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", unfit=_equal_blocks)
def bruck(w: Writer) -> None:
    """As few rounds as halving and doubling, and no more bytes than a ring, for any number of ranks."""
    if w.job.operation == "all_to_all":
        all_to_all(w)
    else:
        Skips(w, all_ranks(w.job.ranks), w.blocks).write()


def all_to_all(w: Writer) -> None:
    """Blocks travel by the bits of their distance: in round k, those with bit k set go 2**k ranks on."""
    n, size = w.job.ranks, w.job.count // w.job.ranks
    rounds, half = rounds_of(n), max(1, n // 2)
    waiting, packed = w.tile("waiting", (max(1, w.job.count),)), w.tile("packed", (half * max(1, size),))
    source = (unit - (expr(1) << member)) % n
    channel = w.channel("bits", source, half * size, members=rounds, slots=1)
    with w.loop(0, n, "far") as far:
        w.copy(piece(waiting, far * size, size), w.blocks.part(w.own, (unit + far) % n))
    with w.loop(0, rounds, "round") as step:
        count = _with_bit(n, step)
        with w.loop(0, count, "block") as number:
            w.copy(piece(packed, number * size, size), piece(waiting, _nth(number, step) * size, size))
        together = piece(packed, 0, count * size)
        w.send(channel, together, (unit + (expr(1) << step)) % n, step)
        message = w.receive(channel, together, step)
        with w.loop(0, count, "block") as number:
            w.copy(piece(waiting, _nth(number, step) * size, size), piece(message, number * size, size))
    with w.loop(0, n, "far") as far:
        w.copy(w.blocks.part(w.output, (unit - far) % n), piece(waiting, far * size, size))


def _with_bit(n: int, bit: Expr) -> Expr:
    """Return how many numbers below n have this bit."""
    width = expr(1) << bit
    return (expr(n) >> (bit + 1) << bit) + maximum(0, n % (width * 2) - width)


def _nth(number: Expr, bit: Expr) -> Expr:
    """Return the number-th of the numbers that have this bit."""
    width = expr(1) << bit
    return (number >> bit << (bit + 1)) + width + number % width


@algorithm("dissemination", "barrier")
def dissemination(w: Writer) -> None:
    """In round k signal the rank 2**k ahead and wait for the one 2**k behind: log2(n) rounds."""
    n = w.job.ranks
    rounds = (n - 1).bit_length()
    arrived = w.builder.flag("arrived", rounds)
    with w.loop(0, rounds, "round") as step:
        w.builder.signal(arrived, to=(unit + (expr(1) << step)) % n, member=step)
        w.builder.wait(arrived, 1, member=step)
