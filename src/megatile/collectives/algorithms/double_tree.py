"""Two trees at once, each with half of the data; who is a leaf in one works in the other."""

from __future__ import annotations

from megatile.collectives.blocks import Blocks
from megatile.collectives.phases.chain import Tree, TreePhase, up_and_down
from megatile.collectives.rank_groups import AllRanks
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer


@algorithm("double_tree", "all_reduce")
def double_tree(w: Writer, chunks: int = 1) -> None:
    """Two binary trees whose inner nodes are each other's leaves, half of the data on each."""
    halves = Blocks(w.job.count, 2)
    everybody = AllRanks(w.job.ranks)
    phases = [
        TreePhase.over(w, Tree(everybody, mirrored=bool(side)), halves.inside(side, chunks))
        for side in range(2)
    ]
    up_and_down(phases, w.own, w.sums)
