"""Pairwise exchange phases: recursive halving and doubling between partners ``position ^ distance``.

Written as arithmetic, all positions share one stream. They need a power of two; ``Fold`` takes the positions
beyond it in and out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, expr, member, minimum, select
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel, Region


def power_below(n: int) -> int:
    """The largest power of two that is not more than n."""
    return 1 << (n.bit_length() - 1)


@dataclass(frozen=True)
class Exchange:
    """``rounds`` steps over the first ``2**rounds`` positions; ``blocks`` has one block for each of them."""

    writer: Writer
    group: RankGroup
    blocks: Blocks
    channel: Channel

    @staticmethod
    def over(writer: Writer, group: RankGroup, blocks: Blocks, most: int | None = None) -> Exchange:
        """Queue k connects partners at distance 2**k; ``most`` elements go at a time (half of all)."""
        source = group.unit_at(group.me ^ (expr(1) << member))
        if group.size != blocks.parts:
            source = select(group.me < blocks.parts, source, -1)
        rounds = blocks.parts.bit_length() - 1
        size = blocks.most * (blocks.parts // 2) if most is None else most
        # Two slots: the last message of halving and the first of doubling use the same queue.
        slots = 2 if most is None else 1
        channel = writer.channel("partners", source, size, members=max(1, rounds), slots=slots)
        return Exchange(writer, group, blocks, channel)

    @property
    def rounds(self) -> int:
        return self.blocks.parts.bit_length() - 1

    def _segment(self, handle: Handle, position: IntLike, width: IntLike) -> Part:
        """The ``width`` blocks (a power of two) around a position."""
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
        """The rounds as loops; the first and the last stand alone where they use other buffers."""
        cuts = {0, self.rounds}
        cuts |= {1} if first_apart else set()
        cuts |= {self.rounds - 1} if last_apart else set()
        ordered = sorted(c for c in cuts if 0 <= c <= self.rounds)
        return list(pairwise(ordered))

    def all_gather(self, sums: Handle) -> None:
        """Recursive doubling: the blocks of all ranks, mine is in ``sums``."""
        w, channel = self.writer, self.channel
        with w.loop(0, self.rounds, "round") as step:
            width = expr(1) << step
            partner = self.group.me ^ width
            w.send(channel, self._segment(sums, self.group.me, width), self.group.unit_at(partner), step)
            theirs = self._segment(sums, partner, width)
            w.copy(theirs, w.receive(channel, theirs, step))

    def all_reduce_whole(self, own: Handle, sums: Handle, whole: Part) -> None:
        """Recursive doubling with the whole buffer: fewest steps, most bytes."""
        w, channel = self.writer, self.channel
        for start, stop in self._rounds(own is not sums, False):
            with w.loop(start, stop, "round") as step:
                partner = self.group.me ^ (expr(1) << step)
                source = own if start == 0 else sums
                mine = Part(source, _renamed(whole, source))
                w.send(channel, mine, self.group.unit_at(partner), step)
                w.reduce(Part(sums, _renamed(whole, sums)), mine, w.receive(channel, mine, step))


def _renamed(what: Part, handle: Handle) -> Region:
    return replace(what.region, tile=handle.name)


@dataclass(frozen=True)
class Fold:
    """Positions from a power of two on hand their data to a partner below and get the result back."""

    writer: Writer
    group: RankGroup
    whole: Part
    most: int

    @contextmanager
    def around(self, own: Handle, sums: Handle) -> Iterator[Handle]:
        """Inside, the positions below the power of two hold everything; gives the buffer to read from."""
        n, w = self.group.size, self.writer
        core = power_below(n)
        if core == n:
            yield own
            return
        me = self.group.me
        extra = n - core
        most = self.most
        into = w.channel("fold", select(me < extra, self.group.unit_at(me + core), -1), most, slots=1)
        back = w.channel("unfold", select(me >= core, self.group.unit_at(me - core), -1), most, slots=1)
        mine, total = Part(own, _renamed(self.whole, own)), Part(sums, _renamed(self.whole, sums))
        with w.when(me >= core):
            w.send(into, mine, self.group.unit_at(me - core))
        with w.when(me < extra):
            w.reduce(total, mine, w.receive(into, mine))
        if own is not sums:
            with w.when((me >= extra) & (me < core)):
                w.copy(total, mine)
        with w.when(me < core):
            yield sums
        with w.when(me < extra):
            w.send(back, total, self.group.unit_at(me + core))
        with w.when(me >= core):
            w.copy(total, w.receive(back, total))


@dataclass(frozen=True)
class Direct:
    """Queue k of a position is fed by the position k+1 behind it."""

    writer: Writer
    group: RankGroup
    blocks: Blocks
    channel: Channel

    @staticmethod
    def over(writer: Writer, group: RankGroup, blocks: Blocks) -> Direct:
        source = group.after(-1 - member)
        channel = writer.channel("pairs", source, blocks.most, members=group.size - 1)
        return Direct(writer, group, blocks, channel)

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        w, me, size, channel = self.writer, self.group.me, self.group.size, self.channel
        with w.loop(0, size - 1) as step:
            to = (me + 1 + step) % size
            w.send(channel, self.blocks.part(own, to), self.group.unit_at(to), step)
        total = self.blocks.part(sums, me)
        if into is not None:
            total = piece(into, 0, self.blocks.length(me))
        mine = self.blocks.part(own, me)
        w.reduce(total, mine, w.receive(channel, mine, 0))
        if size > 2:
            with w.loop(1, size - 1) as step:
                w.reduce(total, total, w.receive(channel, mine, step))

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        w, me, size, channel = self.writer, self.group.me, self.group.size, self.channel
        mine = self.blocks.part(sums, me)
        if own is not None:
            mine = piece(own, 0, self.blocks.length(me))
        with w.loop(0, size - 1) as step:
            w.send(channel, mine, self.group.unit_at((me + 1 + step) % size), step)
        with w.loop(0, size - 1) as step:
            theirs = self.blocks.part(sums, (me - 1 - step) % size)
            w.copy(theirs, w.receive(channel, theirs, step))


def rounds_of(n: int) -> int:
    """How often 1 must be doubled to reach n."""
    return (n - 1).bit_length()


@dataclass(frozen=True)
class Skips:
    """``blocks`` has one block per position of the group."""

    writer: Writer
    group: RankGroup
    blocks: Blocks

    def _channel(self, name: str, towards: int) -> Channel:
        source = self.group.after((expr(1) << member) * -towards)
        most = self.blocks.most * max(1, self.group.size // 2)
        return self.writer.channel(name, source, most, members=rounds_of(self.group.size), slots=2)

    def _each_part(
        self, first: IntLike, count: Expr, put: Callable[[Callable[[Handle], Part]], None]
    ) -> None:
        """``put`` the part up to the last block, then the rest from the first block on, if there is any."""
        begin = expr(first) % self.group.size
        here = minimum(count, self.group.size - begin)
        put(lambda handle: piece(handle, *self.blocks.stretch(begin, here)))
        with self.writer.when(count > here):
            put(lambda handle: piece(handle, *self.blocks.stretch(0, count - here)))

    def all_gather(self, sums: Handle) -> None:
        """Everybody's blocks; mine is in ``sums``."""
        w, me, n = self.writer, self.group.me, self.group.size
        channel = self._channel("fetch", -1)
        with w.loop(0, rounds_of(n), "round") as step:
            width = expr(1) << step
            count = minimum(width, n - width)
            to = self.group.after(-width)
            self._each_part(me, count, lambda part: w.send(channel, part(sums), to, step))
            self._each_part(
                me + width, count, lambda part: w.copy(part(sums), w.receive(channel, part(sums), step))
            )

    def reduce_scatter(self, sums: Handle) -> None:
        """My block is reduced in the end; the others are used up."""
        w, me, n = self.writer, self.group.me, self.group.size
        channel = self._channel("hand_in", 1)
        last = rounds_of(n) - 1
        with w.loop(0, last + 1, "round") as step:
            queue = last - step
            width = expr(1) << queue
            count = minimum(width, n - width)
            to = self.group.after(width)
            self._each_part(me + width, count, lambda part: w.send(channel, part(sums), to, queue))
            self._each_part(
                me,
                count,
                lambda part: w.reduce(part(sums), part(sums), w.receive(channel, part(sums), queue)),
            )
