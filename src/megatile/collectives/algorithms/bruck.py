"""ceil(log2(n)) rounds for any number of ranks, with partners 1, 2, 4, … ranks further (Bruck et al.)."""

from __future__ import annotations

from megatile.collectives.blocks import piece
from megatile.collectives.job import Job
from megatile.collectives.phases.exchange import Skips, rounds_of
from megatile.collectives.rank_groups import AllRanks
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, expr, maximum, member, unit


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
        Skips(w, AllRanks(w.job.ranks), w.blocks).write()


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
    """How many numbers below n have this bit."""
    width = expr(1) << bit
    return (expr(n) >> (bit + 1) << bit) + maximum(0, n % (width * 2) - width)


def _nth(number: Expr, bit: Expr) -> Expr:
    """The number-th of the numbers that have this bit."""
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
