"""Barriers: all ranks wait for all others."""

from __future__ import annotations

from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import expr, unit


@algorithm("dissemination", "barrier")
def dissemination(w: Writer) -> None:
    """In round k signal the rank 2**k ahead and wait for the one 2**k behind: log2(n) rounds."""
    n = w.job.ranks
    rounds = (n - 1).bit_length()
    arrived = w.builder.flag("arrived", rounds)
    with w.loop(0, rounds, "round") as step:
        w.builder.signal(arrived, to=(unit + (expr(1) << step)) % n, member=step)
        w.builder.wait(arrived, 1, member=step)
