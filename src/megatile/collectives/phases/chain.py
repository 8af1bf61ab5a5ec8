"""Trees of messages: up to a root with reduction, down from it; a chain is a tree with one child each.

Chunks travel one after another. Going up and down at once, a unit at depth d handles chunk j on its way up
and chunk j - 2d on its way down in the same round, so that neither direction waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megatile.collectives.blocks import Blocks
from megatile.collectives.rank_groups import RankGroup
from megatile.collectives.writer import Writer
from megatile.core.expr import Expr, IntLike, expr, member, select
from megatile.plan.build import Handle, Part


@dataclass(frozen=True)
class Tree:
    """A tree of units, as arithmetic: my number in it (the root is 0), the units above and below, how far the
    root is."""

    arity: int
    number: Expr
    parent: Expr
    which_child: Expr
    child: Callable[[IntLike], Expr]
    has_child: Callable[[IntLike], Expr]
    depth: Expr


def heap(group: RankGroup, root: IntLike = 0, arity: int = 2, mirrored: bool = False) -> Tree:
    """Return a heap-ordered tree over a group: children of v are v*arity+1 ... v*arity+arity."""
    size = group.size

    def turned(number: IntLike) -> Expr:
        # The mirror image of a heap has its leaves where the heap has its inner nodes.
        return (size - 1 - expr(number)) if mirrored else expr(number)

    def unit_of(number: IntLike) -> Expr:
        return group.unit_at((turned(number) + root) % size)

    number = turned((group.me - root) % size)
    depth, first, width = number if arity == 1 else expr(0), 1, arity
    while first < size and arity > 1:
        depth = depth + (number >= first)
        first, width = first + width, width * arity
    return Tree(
        arity,
        number,
        unit_of((number - 1) // arity),
        (number - 1) % arity,
        lambda index: unit_of(number * arity + 1 + index),
        lambda index: number * arity + 1 + index < size,
        depth,
    )


class TreePhase:
    """Messages along a tree, chunk by chunk; ``blocks`` are the chunks."""

    def __init__(
        self, w: Writer, tree: Tree, blocks: Blocks, *, up: bool = True, down: bool = True, slots: int = 4
    ):
        self.writer, self.tree, self.blocks = w, tree, blocks
        if up:
            child = select(tree.has_child(member), tree.child(member), -1)
            self.up = w.channel("up", child, blocks.most, members=tree.arity, slots=slots)
        if down:
            above = select(tree.number < 1, -1, tree.parent)
            self.down = w.channel("down", above, blocks.most, slots=slots)

    def rise(self, own: Handle, sums: Handle, chunk: IntLike) -> None:
        """Send one chunk towards the root, my part added."""
        w, tree = self.writer, self.tree
        mine, total = self.blocks.part(own, chunk), self.blocks.part(sums, chunk)
        for index in range(tree.arity):
            with w.when(tree.has_child(index)):
                message = w.receive(self.up, mine, index)
                w.reduce(total, mine if index == 0 else total, message)
        with w.when(tree.number > 0):
            if own is sums:
                w.send(self.up, total, tree.parent, tree.which_child)
            else:
                w.either(
                    tree.has_child(0),
                    lambda: w.send(self.up, total, tree.parent, tree.which_child),
                    lambda: w.send(self.up, mine, tree.parent, tree.which_child),
                )

    def sink(self, sums: Handle, chunk: IntLike) -> None:
        """Send one chunk away from the root; the root has it in ``sums``."""
        w, tree = self.writer, self.tree
        place = self.blocks.part(sums, chunk)

        def passed_on() -> None:
            message = w.receive(self.down, place)
            self._to_children(message)
            w.copy(place, message)

        w.either(tree.number < 1, lambda: self._to_children(place), passed_on)

    def _to_children(self, what: Part | Handle) -> None:
        for index in range(self.tree.arity):
            with self.writer.when(self.tree.has_child(index)):
                self.writer.send(self.down, what, self.tree.child(index))


def along_tree(w: Writer, tree: Tree, chunks: Blocks, own: Handle) -> None:
    """Broadcast from the root, or reduce what all have in ``own``; the root has it in ``sums``."""
    broadcast = w.job.operation == "broadcast"
    phase = TreePhase(w, tree, chunks, up=not broadcast, down=broadcast)
    with w.loop(0, chunks.parts, "chunk") as chunk:
        phase.sink(w.sums, chunk) if broadcast else phase.rise(own, w.sums, chunk)


def up_and_down(phases: list[TreePhase], own: Handle, sums: Handle) -> None:
    """All-reduce along one or several trees, each with its own stretch of the data."""
    w, chunks = phases[0].writer, phases[0].blocks.parts
    lags = [2 * phase.tree.depth for phase in phases]
    last: Expr = lags[0]
    for lag in lags[1:]:
        last = last | lag  # an upper bound; rounds in which neither tree has anything to do are empty
    if chunks == 1 and len(phases) == 1:
        phases[0].rise(own, sums, 0)
        phases[0].sink(sums, 0)
        return
    with w.loop(0, last + chunks, "round") as step:
        for phase in phases:
            with w.when(step < chunks):
                phase.rise(own, sums, step)
        for phase, lag in zip(phases, lags, strict=True):
            with w.when((step >= lag) & (step < lag + chunks)):
                phase.sink(sums, step - lag)
