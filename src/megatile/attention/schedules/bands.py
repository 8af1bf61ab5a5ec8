"""Masks as bands: which keys of a block the queries of another block may see.

Every mask here (none, causal, sliding window, between pieces of any layout) is, inside one tile of q rows i
and k columns j, a band ``lower <= j - i <= upper``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from megatile.core.placement import Piece


class Band(NamedTuple):
    """``lower <= j - i <= upper``; None where a side does not limit anything."""

    lower: int | None = None
    upper: int | None = None

    @property
    def full(self) -> bool:
        return self.lower is None and self.upper is None


FULL = Band()


class MaskTile(NamedTuple):
    """What queries i see of keys j. Their distance in the sequence is stride·(j-i) + offset.

    ``hidden`` [batch, heads, i, j] hides more of them, where a mask function says so.
    """

    band: Band
    stride: int = 1
    offset: int = 0
    hidden: Any = None


@dataclass(frozen=True)
class Mask:
    """Key positions visible to a query at position p: from p-left to p+right (None: no limit).

    Queries and keys are aligned at their ends, as flash-attention does: a query's position counts from the
    key length minus the query length.
    """

    left: int | None = None
    right: int | None = None

    @classmethod
    def of(cls, causal: bool, window_size: tuple[int, int] = (-1, -1)) -> Mask:
        """From the usual arguments, where -1 means no limit."""
        left, right = (None if w < 0 else w for w in window_size)
        return cls(left, 0 if causal else right)

    @property
    def none(self) -> bool:
        return self.left is None and self.right is None

    @property
    def purely_causal(self) -> bool:
        return self.left is None and self.right == 0

    def tile(self, q: Piece, k: Piece, shift: int = 0) -> MaskTile | None:
        """Return the tile of two pieces, or None where nothing is visible. ``shift``: key minus query
        length."""
        if q.sequence != k.sequence or not q.length or not k.length:
            return None
        stride = k.stride if k.length > 1 else q.stride
        offset = k.start - q.start - shift
        lowest, highest = 1 - q.length, k.length - 1
        lower = None if self.left is None else -((self.left + offset) // stride)
        upper = None if self.right is None else (self.right - offset) // stride
        if (lower is not None and lower > highest) or (upper is not None and upper < lowest):
            return None
        if lower is not None and upper is not None and lower > upper:
            return None
        return MaskTile(
            Band(
                None if lower is None or lower <= lowest else lower,
                None if upper is None or upper >= highest else upper,
            ),
            stride,
            offset,
        )


def visible_rows(band: Band, rows: int, columns: int) -> tuple[int, int]:
    """Return the first and the end of the rows that see at least one column."""
    first = 0 if band.upper is None else max(0, -band.upper)
    end = rows if band.lower is None else min(rows, columns - band.lower)
    return first, max(first, end)


def visible_columns(band: Band, rows: int, columns: int) -> tuple[int, int]:
    """Return the first and the end of the columns that at least one row sees."""
    first = 0 if band.lower is None else max(0, band.lower)
    end = columns if band.upper is None else min(columns, rows + band.upper)
    return first, max(first, end)


def moved(band: Band, row: int, column: int) -> Band:
    """Return the same band counted from another first row and column."""
    change = row - column
    return Band(
        None if band.lower is None else band.lower + change,
        None if band.upper is None else band.upper + change,
    )


def limited(band: Band, rows: int, columns: int) -> Band:
    """Return the same band without limits that limit nothing in a block of this size."""
    return Band(
        None if band.lower is None or band.lower <= 1 - rows else band.lower,
        None if band.upper is None or band.upper >= columns - 1 else band.upper,
    )


def visible_pairs(band: Band, rows: int, columns: int) -> int:
    """Return how many pairs (i, j) the band lets through: the work of a tile."""
    if band.full:
        return rows * columns
    upper = columns - 1 if band.upper is None else band.upper
    lower = 1 - rows if band.lower is None else band.lower
    return max(0, _below(upper, rows, columns) - _below(lower - 1, rows, columns))


def _below(limit: int, rows: int, columns: int) -> int:
    """Return pairs with j - i <= limit: row i sees the first i+limit+1 columns, at most all of them."""
    first = max(0, -limit)  # rows before see nothing
    full = min(max(first, columns - limit - 1), rows)  # rows from here see every column
    growing = max(0, full - first)
    start = first + limit + 1
    return growing * start + growing * (growing - 1) // 2 + max(0, rows - max(full, first)) * columns


class Part(NamedTuple):
    """A rectangle of a block that a kernel does in one go: rows and columns from..to."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    tile: MaskTile


def part_of(tile: MaskTile, rows: tuple[int, int], columns: tuple[int, int]) -> Part | None:
    """Return the visible rectangle of a tile inside these rows and columns, or None."""
    for _ in range(2):  # cutting columns can free rows and vice versa
        height, width = rows[1] - rows[0], columns[1] - columns[0]
        if height <= 0 or width <= 0:
            return None
        band = moved(tile.band, rows[0], columns[0])
        first, end = visible_rows(band, height, width)
        left, right = visible_columns(band, height, width)
        rows, columns = (rows[0] + first, rows[0] + end), (columns[0] + left, columns[0] + right)
    height, width = rows[1] - rows[0], columns[1] - columns[0]
    if height <= 0 or width <= 0:
        return None
    band = limited(moved(tile.band, rows[0], columns[0]), height, width)
    return Part(
        rows, columns, MaskTile(band, tile.stride, tile.offset + tile.stride * (columns[0] - rows[0]))
    )
