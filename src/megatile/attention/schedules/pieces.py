"""Who owns which tokens: layouts divide sequences over ranks into pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from megatile.core.errors import MegatileError, did_you_mean


class LayoutError(MegatileError, ValueError):
    """Local lengths that do not fit the layout, or a layout that does not exist."""


class Piece(NamedTuple):
    """``length`` tokens of one sequence at positions start, start+stride, start+2·stride, …"""

    start: int
    length: int
    stride: int = 1
    sequence: int = 0

    def part(self, begin: int, end: int) -> Piece:
        """The tokens with local numbers begin..end-1 of this piece."""
        return self._replace(start=self.start + begin * self.stride, length=end - begin)


Pieces = tuple[Piece, ...]


def split(length: int, parts: int) -> list[int]:
    """``length`` in ``parts`` sizes that differ by at most one, the larger ones first."""
    quotient, remainder = divmod(length, parts)
    return [quotient + (i < remainder) for i in range(parts)]


def blocks(length: int, parts: int, sequence: int = 0) -> list[Piece]:
    """The sequence cut into ``parts`` consecutive pieces."""
    pieces, start = [], 0
    for size in split(length, parts):
        pieces.append(Piece(start, size, 1, sequence))
        start += size
    return pieces


def local_length(pieces: Sequence[Piece]) -> int:
    """How many tokens a rank holds."""
    return sum(piece.length for piece in pieces)


def cut(pieces: Sequence[Piece], begin: int, end: int) -> Pieces:
    """The tokens with local numbers begin..end-1 of a rank that holds ``pieces`` one after the other."""
    result, at = [], 0
    for piece in pieces:
        low, high = max(begin, at), min(end, at + piece.length)
        if low < high:
            result.append(piece.part(low - at, high - at))
        at += piece.length
    return tuple(result)


def cuts(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[Pieces]:
    """The tokens of ``pieces``, one after the other, in parts of these sizes."""
    result, rest = [], list(reversed(pieces))
    for size in sizes:
        part = []
        while size and rest:
            piece = rest.pop()
            if piece.length > size:
                rest.append(piece.part(size, piece.length))
                piece = piece.part(0, size)
            part.append(piece)
            size -= piece.length
        result.append(tuple(part))
    return result


def positions(pieces: Sequence[Piece]) -> list[int]:
    """The position of each local token in its sequence, in local order."""
    return [p.start + i * p.stride for p in pieces for i in range(p.length)]


def _contiguous(length: int, ranks: int, sequence: int) -> list[list[Piece]]:
    return [[block] for block in blocks(length, ranks, sequence)]


def _zigzag(length: int, ranks: int, sequence: int) -> list[list[Piece]]:
    halves = blocks(length, 2 * ranks, sequence)
    return [[halves[r], halves[2 * ranks - 1 - r]] for r in range(ranks)]


def _striped(length: int, ranks: int, sequence: int) -> list[list[Piece]]:
    return [[Piece(r, max(0, -((r - length) // ranks)), ranks, sequence)] for r in range(ranks)]


_DIVIDE: dict[str, Callable[[int, int, int], list[list[Piece]]]] = {
    "contiguous": _contiguous,
    "zigzag": _zigzag,
    "striped": _striped,
}
LAYOUTS = (*_DIVIDE, "slices", "cycles")


@dataclass(frozen=True)
class Layout:
    """A rule that divides sequences over ``ranks``.

    ``contiguous``: rank r holds block r of n. ``zigzag``: blocks r and 2n-1-r of 2n, which balances causal
    work. ``striped``: tokens r, r+n, r+2n, …. ``cycles``: block i·n+j of C·n belongs to rank ``cycles[i][j]``
    as its chunk i. These divide every sequence by itself; ``slices`` cuts packed sequences, one after the
    other, into n consecutive slices. With ``heads`` > 1 each part is divided once more, consecutively, over
    the ranks that share it.
    """

    name: str
    ranks: int
    heads: int = 1
    cycles: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.name == "cycles" and not self.cycles:
            raise LayoutError("layout 'cycles' needs the cycles of a schedule, for example hamilton")
        if self.name not in LAYOUTS:
            raise LayoutError(f"there is no layout '{self.name}'", advice=did_you_mean(self.name, LAYOUTS))

    def outer(self) -> Layout:
        """The layout over the groups of ranks that share a part."""
        return Layout(self.name, self.ranks // self.heads, 1, self.cycles)

    def pieces(self, lengths: Sequence[int]) -> list[Pieces]:
        """Per rank, the pieces of all sequences (one after the other) it holds, in local order."""
        groups = self.ranks // self.heads
        if self.name == "slices":
            whole = [Piece(0, length, 1, sequence) for sequence, length in enumerate(lengths) if length]
            slices = cuts(whole, split(sum(lengths), groups))
            return [part for group in slices for part in self._among_heads(group)]
        held: list[list[Piece]] = [[] for _ in range(groups)]
        for sequence, length in enumerate(lengths):
            divided = self._divide(length, groups, sequence)
            for group in range(groups):
                held[group] += [piece for piece in divided[group] if piece.length]
        return [part for own in held for part in self._among_heads(own)]

    def _divide(self, length: int, groups: int, sequence: int) -> list[list[Piece]]:
        if self.name != "cycles":
            return _DIVIDE[self.name](length, groups, sequence)
        held: list[list[Piece]] = [[] for _ in range(groups)]
        for k, block in enumerate(blocks(length, len(self.cycles) * groups, sequence)):
            held[self.cycles[k // groups][k % groups]].append(block)
        return held

    def _among_heads(self, group: Sequence[Piece]) -> list[Pieces]:
        return cuts(group, split(local_length(group), self.heads))
