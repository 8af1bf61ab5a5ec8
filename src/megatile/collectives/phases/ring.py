"""Ring phases: reduce-scatter, all-gather, and both in one without a seam.

Data goes round one ring per *lane* of the group, each block cut into ``chunks`` that follow one another, so
that a chunk is passed on while the next arrives. Position p of a lane begins with block p-1 and ends up with
block p. Every loop body is "receive, work, send on": a unit never waits for a slot that only it could free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megatile.collectives.blocks import Blocks
from megatile.collectives.job import REDUCING
from megatile.collectives.phases import Phase
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, member
from megatile.plan.build import Handle, Part

SLOTS = 4
"""Messages in flight between units with queues in memory of their own, as ``n_slots`` of ccl.yaml."""


class Ring(Phase):
    """A group's rings with their channel; ``blocks`` has one block per position."""

    def __init__(
        self, writer: Writer, group: RankGroup, blocks: Blocks, chunks: int = 1, slots: int | None = None
    ):
        chunks = max(chunks, writer.pieces(Blocks(blocks.most, group.lanes).most, versions=2))
        self.writer, self.group, self.blocks, self.chunks = writer, group, blocks, chunks
        most = Blocks(blocks.most, group.lanes * chunks).most
        usual = 2 if writer.job.near is None else SLOTS
        depth = max(usual * chunks if slots is None else slots, chunks + 1)
        source = group.lane(member).after(-1)
        self.channel = writer.channel("ring", source, most, members=group.lanes, slots=depth)
        self.near = writer.near("near", most, versions=2) if writer.job.operation in REDUCING else None

    @contextmanager
    def every(self) -> Iterator[tuple[Expr, Expr]]:
        """All lanes and chunks, in the order in which messages travel."""
        with (
            self.writer.loop(0, self.group.lanes, "lane") as lane,
            self.writer.loop(0, self.chunks, "chunk") as chunk,
        ):
            yield lane, chunk

    def piece(self, handle: Handle, back: IntLike, lane: Expr, chunk: Expr, local: bool = False) -> Part:
        """Of the block ``back`` positions behind mine: the part of this lane and chunk.

        ``local``: the handle holds only that block, from its beginning.
        """
        group = self.group.lane(lane)
        cut = self.blocks.inside(group.seat((group.me - back) % group.size), self.group.lanes * self.chunks)
        if local:
            cut = Blocks(cut.count, cut.parts, 0, cut.limit)
        return cut.part(handle, lane * self.chunks + chunk)

    def send(self, what: Part | Handle, lane: Expr) -> None:
        self.writer.send(self.channel, what, self.group.lane(lane).after(1), lane)

    def receive(self, like: Part, lane: Expr) -> Handle:
        return self.writer.receive(self.channel, like, lane)

    # --- phases ----------------------------------------------------------------------------------

    def begin_reduction(self, own: Handle) -> None:
        with self.every() as (lane, chunk):
            self.send(self.piece(own, 1, lane, chunk), lane)

    def reduce_step(
        self,
        own: Handle,
        sums: Handle,
        step: IntLike,
        on: bool,
        into: Handle | None = None,
        last: bool = True,
    ) -> None:
        """Receive block ``step + 2`` behind, add mine, send it on if ``on``, keep it if this is the ``last``
        step."""
        with self.every() as (lane, chunk):
            mine = self.piece(own, step + 2, lane, chunk)
            total = kept = self.piece(sums, step + 2, lane, chunk)
            if into is not None:
                total = kept = self.piece(into, step + 2, lane, chunk, local=True)
            if self.near is not None:
                mine = total = self.writer.load(self.near, mine)
            message = self.receive(mine, lane)
            self.writer.reduce(total, mine, message)
            if on:
                self.send(total, lane)
            if last and self.near is not None:
                self.writer.copy(kept, total)

    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        """My block is reduced in the end: in ``sums``, or at the beginning of ``into``."""
        size = self.group.size
        if size == 1:
            return
        self.begin_reduction(own)
        if size > 2:
            with self.writer.loop(0, size - 2) as step:
                self.reduce_step(own, sums, step, True, last=False)
        self.reduce_step(own, sums, size - 2, False, into)

    def gather_step(self, sums: Handle, step: IntLike, on: bool) -> None:
        """Receive block ``step + 1`` behind, send it on if ``on``, keep a copy."""
        with self.every() as (lane, chunk):
            place = self.piece(sums, step + 1, lane, chunk)
            message = self.receive(place, lane)
            if on:
                self.send(message, lane)
            self.writer.copy(place, message)

    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        """Everybody's blocks in ``sums``; mine is there, or at the beginning of ``own``."""
        if self.group.size == 1:
            return
        self.begin_gathering(sums, own)
        self._gather_rest(sums)

    def begin_gathering(self, sums: Handle, own: Handle | None = None) -> None:
        with self.every() as (lane, chunk):
            mine = self.piece(sums if own is None else own, 0, lane, chunk, local=own is not None)
            self.send(mine, lane)

    def _gather_rest(self, sums: Handle) -> None:
        size = self.group.size
        if size > 2:
            with self.writer.loop(0, size - 2) as step:
                self.gather_step(sums, step, True)
        self.gather_step(sums, size - 2, False)

    def all_reduce(self, own: Handle, sums: Handle) -> None:
        """Write both phases; the last sum of a chunk leaves at once as the first message of the second."""
        size = self.group.size
        if size == 1:
            return
        self.begin_reduction(own)
        first = 0 if self.near is None else size - 2
        if first:
            with self.writer.loop(0, first) as step:
                self.reduce_step(own, sums, step, True, last=False)
        with self.writer.loop(first, size - 1) as step:
            self.reduce_step(own, sums, step, True)
        self._gather_rest(sums)
