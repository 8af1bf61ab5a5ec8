"""All-to-all in n-1 steps: in step s every rank exchanges with the ranks s before and behind."""

from __future__ import annotations

from megatile.collectives.algorithms.direct import arriving
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import member, unit


@algorithm("pairwise", "all_to_all")
def pairwise(w: Writer) -> None:
    """One partner at a time, so that no rank is sent to by two at once."""
    n, blocks, arrivals = w.job.ranks, w.blocks, arriving(w)
    channel = w.channel("pairs", (unit - 1 - member) % n, blocks.most, members=n - 1, slots=1)
    kept = w.tile("kept", (max(1, w.job.count),)) if not w.out_of_place else w.own
    if not w.out_of_place:
        # What arrives would overwrite what is still to be sent.
        w.copy(kept, w.own)
    w.copy(arrivals.part(w.output, unit), blocks.part(kept, unit))
    with w.loop(0, n - 1) as step:
        to = (unit + 1 + step) % n
        w.send(channel, blocks.part(kept, to), to, step)
        place = arrivals.part(w.output, (unit - 1 - step) % n)
        w.copy(place, w.receive(channel, place, step))
