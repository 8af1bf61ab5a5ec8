"""A binary tree: few steps, so it suits small messages and many ranks."""

from __future__ import annotations

from megatile.collectives.algorithms.ring import put_root_data
from megatile.collectives.blocks import Blocks
from megatile.collectives.phases.chain import Tree, TreePhase, broadcast_down, reduce_up, up_and_down
from megatile.collectives.rank_groups import AllRanks
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer


@algorithm("tree", "all_reduce", "broadcast", "reduce")
def tree(w: Writer, chunks: int = 1, arity: int = 2) -> None:
    """Up a binary tree with reduction and down again; chunks keep both directions busy."""
    shape = Tree(AllRanks(w.job.ranks), w.job.root, arity)
    parts = Blocks(w.job.count, chunks)
    if w.job.operation == "all_reduce":
        up_and_down([TreePhase.over(w, shape, parts)], w.own, w.sums)
    elif w.job.operation == "broadcast":
        put_root_data(w)
        broadcast_down(TreePhase.over(w, shape, parts, up=False), w.sums)
    else:
        reduce_up(TreePhase.over(w, shape, parts, down=False), w.own, w.sums)
