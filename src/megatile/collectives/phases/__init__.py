"""Building blocks of algorithms: each phase works on a group and on blocks, at any level of a hierarchy."""

from __future__ import annotations

from abc import ABC, abstractmethod

from megatile.collectives.blocks import Blocks
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.plan.build import Handle


class Phase(ABC):
    """One step of a collective, the same for all members of a group; ``blocks`` has one block per
    position."""

    writer: Writer
    group: RankGroup
    blocks: Blocks

    @abstractmethod
    def reduce_scatter(self, own: Handle, sums: Handle, into: Handle | None = None) -> None:
        """My block is reduced in the end: in ``sums``, or at the beginning of ``into``."""

    @abstractmethod
    def all_gather(self, sums: Handle, own: Handle | None = None) -> None:
        """Everybody's blocks in ``sums``; mine is there, and at the beginning of ``own`` if that is given."""

    def all_reduce(self, own: Handle, sums: Handle) -> None:
        """Write both, one after the other."""
        self.reduce_scatter(own, sums)
        self.all_gather(sums)

    def write(self) -> None:
        """Write the job, which is one of these, over all ranks."""
        w = self.writer
        match w.job.operation:
            case "all_reduce":
                self.all_reduce(w.own, w.sums)
            case "reduce_scatter":
                self.reduce_scatter(w.own, w.sums, w.output if w.out_of_place else None)
            case _:
                w.put_contribution()
                self.all_gather(w.sums, w.own if w.out_of_place else None)
