"""The plainest all-reduce: every rank's whole buffer goes round once. Right, with n/2 times the traffic."""

from __future__ import annotations

from megatile.collectives.blocks import piece
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import unit
from megatile.plan.build import Part
from megatile.plan.model import Channel


@algorithm("ring_naive", "all_reduce")
def ring_naive(w: Writer) -> None:
    """Whole buffers go round; n-1 steps of the whole size."""
    n, count = w.job.ranks, w.job.count
    channel = w.channel("ring", (unit - 1) % n, count)
    own, total = piece(w.own, 0, count), piece(w.sums, 0, count)
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
