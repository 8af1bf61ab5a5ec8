"""Binary trees: few steps, so they suit small messages and many ranks."""

from __future__ import annotations

from megatile.collectives.blocks import Blocks
from megatile.collectives.phases.chain import Tree, TreePhase, along_tree, heap, up_and_down
from megatile.collectives.rank_groups import all_ranks
from megatile.collectives.registry import ON_NODES, algorithm, needs
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, eq, select, unit


@algorithm("tree", "all_reduce", "broadcast", "reduce")
def tree(w: Writer, chunks: int = 1, arity: int = 2) -> None:
    """Up a binary tree with reduction and down again; chunks keep both directions busy."""
    shape = heap(all_ranks(w.job.ranks), w.job.root, arity)
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
    everybody = all_ranks(w.job.ranks)
    phases = [
        TreePhase(w, heap(everybody, mirrored=bool(side)), halves.inside(side, chunks)) for side in range(2)
    ]
    up_and_down(phases, w.own, w.sums)


FAR = 8
"""About how many steps inside a node one between nodes takes: ranks send so many chunks up meanwhile."""


def heads_of_nodes(ranks: int, inside: int) -> Tree:
    """Rank 0 of a node is its head; heads form a binary heap, child 0 is the next in the node."""
    seat, node, levels = unit % inside, unit // inside, (ranks // inside).bit_length() - 1

    def head(index: IntLike) -> Expr:
        return (node * 2 + index) * inside

    return Tree(
        3,
        unit,
        parent=select(seat, unit - 1, (node - 1) // 2 * inside),
        which_child=select(seat, 0, 1 + (node - 1) % 2),
        child=lambda index: select(index, head(index), unit + 1),
        has_child=lambda index: select(index, eq(seat, 0) & (head(index) < ranks), seat < inside - 1),
        # Half of the rounds after which a chunk that went up comes down again.
        depth=select(unit, seat + FAR * levels, 0),
    )


IN_OR_OVER_NODES = (lambda job: len(job.nesting) <= 2, ON_NODES[1])


@algorithm("node_tree", "all_reduce", unfit=needs(IN_OR_OVER_NODES))
def node_tree(w: Writer, chunks: int = 1) -> None:
    """Along a chain to the head of each node, up a binary tree of nodes, and back; in one node the chain."""
    shape = heads_of_nodes(w.job.ranks, w.job.nesting[0])
    # A chunk may wait for as long as it takes the first one to come back.
    phase = TreePhase(w, shape, Blocks(w.job.count, chunks), slots=chunks + 1)
    up_and_down([phase], w.own, w.sums)
