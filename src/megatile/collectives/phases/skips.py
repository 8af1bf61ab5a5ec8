"""Phases in ceil(log2(n)) rounds for any number of positions: partners 1, 2, 4, … positions further round.

Gathering, a position that has the ``width`` blocks from its own on fetches those that follow from the
position ``width`` further. Reducing is the same backwards: what would be fetched is handed in, the widest
first. Blocks are counted round the ring, so a stretch may go on at the first block: it then travels in two
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, expr, member, minimum
from megatile.plan.build import Handle, Part
from megatile.plan.model import Channel


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
