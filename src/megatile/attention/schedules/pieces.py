"""Who owns which tokens: layouts divide sequences over ranks into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatile.attention.schedules.balance import balanced_pieces
from megatile.core.errors import MegatileError, did_you_mean
from megatile.core.placement import ORDERS, Piece, Pieces, blocks, cuts, local_length, split


class LayoutError(MegatileError, ValueError):
    """Local lengths that do not fit the layout, or a layout that does not exist."""


LAYOUTS = (*ORDERS, "slices", "balanced", "cycles")


@dataclass(frozen=True)
class Layout:
    """A rule that divides sequences over ``ranks``.

    ``contiguous``: rank r holds block r of n. ``zigzag``: blocks r and 2n-1-r of 2n, which balances causal
    work. ``striped``: tokens r, r+n, r+2n, …. ``cycles``: block i·n+j of C·n belongs to rank ``cycles[i][j]``
    as its chunk i. These divide every sequence by itself; ``slices`` cuts packed sequences, one after the
    other, into n consecutive slices, ``balanced`` into many, dealt out so that all ranks have equal work (see
    ``balance``; ``causal`` says which mask). With ``heads`` > 1 each part is divided once more,
    consecutively, over the ranks that share it.
    """

    name: str
    ranks: int
    heads: int = 1
    cycles: tuple[tuple[int, ...], ...] = ()
    causal: bool = False

    def __post_init__(self) -> None:
        if self.name == "cycles" and not self.cycles:
            raise LayoutError("layout 'cycles' needs the cycles of a schedule, for example hamilton")
        if self.name not in LAYOUTS:
            raise LayoutError(f"there is no layout '{self.name}'", advice=did_you_mean(self.name, LAYOUTS))

    def outer(self) -> Layout:
        """Return the layout over the groups of ranks that share a part."""
        return Layout(self.name, self.ranks // self.heads, 1, self.cycles, self.causal)

    def pieces(self, lengths: Sequence[int]) -> list[Pieces]:
        """Per rank, the pieces of all sequences (one after the other) it holds, in local order."""
        groups = self.ranks // self.heads
        if self.name == "slices":
            whole = [Piece(0, length, 1, sequence) for sequence, length in enumerate(lengths) if length]
            slices = cuts(whole, split(sum(lengths), groups))
            return [part for group in slices for part in self._among_heads(group)]
        if self.name == "balanced":
            groups_of = balanced_pieces(tuple(lengths), groups, self.causal)
            return [part for group in groups_of for part in self._among_heads(group)]
        held: list[list[Piece]] = [[] for _ in range(groups)]
        for sequence, length in enumerate(lengths):
            divided = self._divide(length, groups, sequence)
            for group in range(groups):
                held[group] += [piece for piece in divided[group] if piece.length]
        return [part for own in held for part in self._among_heads(own)]

    def _divide(self, length: int, groups: int, sequence: int) -> list[list[Piece]]:
        if self.name != "cycles":
            return ORDERS[self.name](length, groups, sequence)
        held: list[list[Piece]] = [[] for _ in range(groups)]
        for k, block in enumerate(blocks(length, len(self.cycles) * groups, sequence)):
            held[self.cycles[k // groups][k % groups]].append(block)
        return held

    def _among_heads(self, group: Sequence[Piece]) -> list[Pieces]:
        return cuts(group, split(local_length(group), self.heads))
