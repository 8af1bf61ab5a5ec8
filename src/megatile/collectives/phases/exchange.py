"""Pairwise exchange phases: recursive halving and doubling between partners ``position ^ distance``.

Written as arithmetic, all positions share one stream. They need a power of two; ``folded`` takes the
positions beyond it in and out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.phases import Phase
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, expr, member, minimum, select
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel


def power_below(n: int) -> int:
    """Return the largest power of two that is not more than n."""
    return 1 << (n.bit_length() - 1)


class Exchange(Phase):
    """``rounds`` steps over the first ``2**rounds`` positions; ``blocks`` has one block for each of them.

    Queue k connects partners at distance 2**k; ``most`` elements go at a time (half of all).
    """

    def __init__(self, writer: Writer, group: RankGroup, blocks: Blocks, most: int | None = None):
        self.writer, self.group, self.blocks = writer, group, blocks
        self.rounds = blocks.parts.bit_length() - 1
        source = group.unit_at(group.me ^ (expr(1) << member))
        if group.size != blocks.parts:
            source = select(group.me < blocks.parts, source, -1)
        size = blocks.most * (blocks.parts // 2) if most is None else most
        # Two slots: the last message of halving and the first of doubling use the same queue.
        slots = 2 if most is None else 1
        self.channel = writer.channel("partners", source, size, members=max(1, self.rounds), slots=slots)

    def _segment(self, handle: Handle, position: IntLike, width: IntLike) -> Part:
        """Return the ``width`` blocks (a power of two) around a position."""
        first = expr(position) // width * width
        return piece(handle, *self.blocks.stretch(first, width))

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        """Recursive halving: my block is reduced in the end."""
        w, n, channel = self.writer, self.blocks.parts, self.channel
        for start, stop in self._rounds(own is not sums, into is not None):
            with w.loop(start, stop, "round") as step:
                width = expr(n) >> (step + 1)
                partner, queue = self.group.me ^ width, self.rounds - 1 - step
                source = own if start == 0 else sums
                w.send(channel, self._segment(source, partner, width), self.group.unit_at(partner), queue)
                mine = self._segment(source, self.group.me, width)
                total = self._segment(sums, self.group.me, width)
                if into is not None and stop == self.rounds:
                    total = piece(into, 0, self.blocks.length(self.group.me))
                w.reduce(total, mine, w.receive(channel, mine, queue))

    def _rounds(self, first_apart: bool, last_apart: bool) -> list[tuple[int, int]]:
        """Return the rounds as loops; the first and the last stand alone where they use other buffers."""
        cuts = {0, self.rounds}
        cuts |= {1} if first_apart else set()
        cuts |= {self.rounds - 1} if last_apart else set()
        ordered = sorted(c for c in cuts if 0 <= c <= self.rounds)
        return list(pairwise(ordered))

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        """Recursive doubling: the blocks of all ranks, mine is in ``sums``."""
        w, channel = self.writer, self.channel
        with w.loop(0, self.rounds, "round") as step:
            width = expr(1) << step
            partner = self.group.me ^ width
            w.send(channel, self._segment(sums, self.group.me, width), self.group.unit_at(partner), step)
            theirs = self._segment(sums, partner, width)
            w.copy(theirs, w.receive(channel, theirs, step))

    def all_reduce_whole(self, own: Handle, sums: Handle) -> None:
        """Recursive doubling with whole buffers: fewest steps, most bytes."""
        w, channel = self.writer, self.channel
        for start, stop in self._rounds(own is not sums, False):
            with w.loop(start, stop, "round") as step:
                partner = self.group.me ^ (expr(1) << step)
                mine = w.whole(own if start == 0 else sums)
                w.send(channel, mine, self.group.unit_at(partner), step)
                w.reduce(w.whole(sums), mine, w.receive(channel, mine, step))


@contextmanager
def folded(w: Writer, group: RankGroup) -> Iterator[Handle]:
    """Positions from a power of two on hand their data to a partner below and get the result back. Inside,
    those below hold everything; gives the buffer to read from."""
    n, core, me = group.size, power_below(group.size), group.me
    if core == n:
        yield w.own
        return
    extra, mine, total = n - core, w.whole(w.own), w.whole(w.sums)
    into = w.channel("fold", select(me < extra, group.unit_at(me + core), -1), w.job.count, slots=1)
    back = w.channel("unfold", select(me >= core, group.unit_at(me - core), -1), w.job.count, slots=1)
    with w.when(me >= core):
        w.send(into, mine, group.unit_at(me - core))
    with w.when(me < extra):
        w.reduce(total, mine, w.receive(into, mine))
    if w.out_of_place:
        with w.when((me >= extra) & (me < core)):
            w.copy(total, mine)
    with w.when(me < core):
        yield w.sums
    with w.when(me < extra):
        w.send(back, total, group.unit_at(me + core))
    with w.when(me >= core):
        w.copy(total, w.receive(back, total))


class Direct(Phase):
    """Queue k of a position is fed by the position k+1 behind it."""

    def __init__(
        self, writer: Writer, group: RankGroup, blocks: Blocks, name: str = "pairs", index: str = "step"
    ):
        self.writer, self.group, self.blocks, self.index = writer, group, blocks, index
        source = group.after(-1 - member)
        self.channel = writer.channel(name, source, blocks.most, members=group.size - 1)

    def hand_out(self, own: Handle, blocks: Blocks) -> None:
        """Send every other member its block."""
        w, size = self.writer, self.group.size
        with w.loop(0, size - 1, self.index) as step:
            to = (self.group.me + 1 + step) % size
            w.send(self.channel, blocks.part(own, to), self.group.unit_at(to), step)

    def add_up(self, mine: Part, total: Part) -> None:
        """Reduce my block and what the others have sent of it."""
        w = self.writer
        w.reduce(total, mine, w.receive(self.channel, mine, 0))
        if self.group.size > 2:
            with w.loop(1, self.group.size - 1, self.index) as step:
                w.reduce(total, total, w.receive(self.channel, mine, step))

    def spread(self, mine: Part) -> None:
        """Send my block to all others."""
        w, size = self.writer, self.group.size
        with w.loop(0, size - 1, self.index) as step:
            w.send(self.channel, mine, self.group.unit_at((self.group.me + 1 + step) % size), step)

    def collect(self, sums: Handle, blocks: Blocks) -> None:
        """Keep the blocks of the others."""
        w, size = self.writer, self.group.size
        with w.loop(0, size - 1, self.index) as step:
            theirs = blocks.part(sums, (self.group.me - 1 - step) % size)
            w.copy(theirs, w.receive(self.channel, theirs, step))

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        me, blocks = self.group.me, self.blocks
        self.hand_out(own, blocks)
        total = blocks.part(sums, me) if into is None else piece(into, 0, blocks.length(me))
        self.add_up(blocks.part(own, me), total)

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        me, blocks = self.group.me, self.blocks
        self.spread(blocks.part(sums, me) if own is None else piece(own, 0, blocks.length(me)))
        self.collect(sums, blocks)


def rounds_of(n: int) -> int:
    """Return how often 1 must be doubled to reach n."""
    return (n - 1).bit_length()


class Skips(Phase):
    """Partners 1, 2, 4, … positions further; any number of them."""

    def __init__(self, writer: Writer, group: RankGroup, blocks: Blocks):
        self.writer, self.group, self.blocks = writer, group, blocks

    def _channel(self, name: str, towards: int) -> Channel:
        source = self.group.after((expr(1) << member) * -towards)
        most = self.blocks.most * max(1, self.group.size // 2)
        return self.writer.channel(name, source, most, members=rounds_of(self.group.size), slots=2)

    def _each(self, first: IntLike, step: Expr, put: Callable[[Callable[[Handle], Part]], None]) -> None:
        """``put`` the blocks from ``first`` on that travel in a round of this step."""
        n = self.group.size
        self.writer.each_part(self.blocks, expr(first) % n, minimum(step, n - step), put)

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        w, me, n = self.writer, self.group.me, self.group.size
        channel = self._channel("fetch", -1)
        with w.loop(0, rounds_of(n), "round") as step:
            width = expr(1) << step
            to = self.group.after(-width)
            self._each(me, width, lambda part: w.send(channel, part(sums), to, step))
            self._each(
                me + width, width, lambda part: w.copy(part(sums), w.receive(channel, part(sums), step))
            )

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        """My block is reduced in the end; the others in ``sums`` are used up."""
        w, me, n = self.writer, self.group.me, self.group.size
        if own is not sums:
            w.copy(*(piece(h, self.blocks.base, self.blocks.count) for h in (sums, own)))
        channel = self._channel("hand_in", 1)
        last = rounds_of(n) - 1
        with w.loop(0, last + 1, "round") as step:
            queue = last - step
            width = expr(1) << queue
            to = self.group.after(width)
            self._each(me + width, width, lambda part: w.send(channel, part(sums), to, queue))
            self._each(
                me,
                width,
                lambda part: w.reduce(part(sums), part(sums), w.receive(channel, part(sums), queue)),
            )
        if into is not None:
            w.copy(piece(into, 0, self.blocks.length(me)), self.blocks.part(sums, me))
