"""A chain inside every node and a binary tree between nodes: what NCCL calls a tree."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.collectives.blocks import Blocks
from megatile.collectives.job import Job
from megatile.collectives.phases.chain import Tree, TreePhase, up_and_down
from megatile.collectives.rank_groups import AllRanks
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, eq, expr, select, unit

FAR = 8
"""About how many steps inside a node one between nodes takes: ranks send so many chunks up meanwhile."""


@dataclass(frozen=True)
class NodeTree(Tree):
    """Rank 0 of a node is its head; heads form a binary heap, child 0 is the next in the node."""

    inside: int = 1

    @property
    def _seat(self) -> Expr:
        return unit % self.inside

    @property
    def _node(self) -> Expr:
        return unit // self.inside

    @property
    def number(self) -> Expr:
        return unit

    def unit_of(self, number: IntLike) -> Expr:
        return expr(number)

    @property
    def parent(self) -> Expr:
        return select(self._seat, unit - 1, (self._node - 1) // 2 * self.inside)

    @property
    def which_child(self) -> Expr:
        return select(self._seat, 0, 1 + (self._node - 1) % 2)

    def child(self, index: IntLike) -> Expr:
        return select(index, (self._node * 2 + index) * self.inside, unit + 1)

    def has_child(self, index: IntLike) -> Expr:
        below = eq(self._seat, 0) & ((self._node * 2 + index) * self.inside < self.size)
        return select(index, below, self._seat < self.inside - 1)

    @property
    def depth(self) -> Expr:
        """Half of the rounds after which a chunk that went up comes down again."""
        levels = (self.size // self.inside).bit_length() - 1
        return select(unit, self._seat + FAR * levels, 0)


def _nodes(job: Job) -> str | None:
    return None if len(job.nesting) == 2 else "needs nodes with several ranks each"


@algorithm("node_tree", "all_reduce", unfit=_nodes)
def node_tree(w: Writer, chunks: int = 1) -> None:
    """Along a chain to the head of each node, up a binary tree of nodes, and back."""
    shape = NodeTree(AllRanks(w.job.ranks), 0, 3, inside=w.job.nesting[0])
    # A chunk may wait for as long as it takes the first one to come back.
    phase = TreePhase.over(w, shape, Blocks(w.job.count, chunks), slots=chunks + 1)
    up_and_down([phase], w.own, w.sums)
