"""Binary trees: few steps, so they suit small messages and many ranks."""

from __future__ import annotations

from dataclasses import dataclass

from megatile.collectives.blocks import Blocks
from megatile.collectives.job import Job
from megatile.collectives.phases.chain import Tree, TreePhase, along_tree, up_and_down
from megatile.collectives.rank_groups import AllRanks
from megatile.collectives.registry import algorithm
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, eq, expr, select, unit


@algorithm("tree", "all_reduce", "broadcast", "reduce")
def tree(w: Writer, chunks: int = 1, arity: int = 2) -> None:
    """Up a binary tree with reduction and down again; chunks keep both directions busy."""
    shape = Tree(AllRanks(w.job.ranks), w.job.root, arity)
    parts = Blocks(w.job.count, chunks)
    w.put_root_data()
    if w.job.operation == "all_reduce":
        up_and_down([TreePhase(w, shape, parts)], w.own, w.sums)
    else:
        along_tree(w, shape, parts, w.own)


@algorithm("double_tree", "all_reduce")
def double_tree(w: Writer, chunks: int = 1) -> None:
    """Two binary trees whose inner nodes are each other's leaves, half of the data on each."""
    halves = Blocks(w.job.count, 2)
    everybody = AllRanks(w.job.ranks)
    phases = [
        TreePhase(w, Tree(everybody, mirrored=bool(side)), halves.inside(side, chunks)) for side in range(2)
    ]
    up_and_down(phases, w.own, w.sums)


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
    phase = TreePhase(w, shape, Blocks(w.job.count, chunks), slots=chunks + 1)
    up_and_down([phase], w.own, w.sums)
