"""Direct phases: every rank to every other, one message per pair and phase, all at once."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.collectives.blocks import Blocks, piece
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import member
from megatile.plan.build import Handle
from megatile.plan.model import Channel


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
