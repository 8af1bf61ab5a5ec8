"""Packs whose work is balanced over ranks: slices of documents, dealt out by their area under the mask.

The pack is cut into equal slices, the same number for every rank, so that all hold as many tokens and send as
many. Slices are dealt out, the largest area first, to the rank with least so far that has room. Where that is
not balanced (a document that fills a third of the pack has too few slices to go round), slices are halved.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from megatile.core.cached import cached
from megatile.core.placement import Piece, Pieces, split

SLICES_PER_RANK = (16, 32, 64)
"""More balance better and tear documents into more pieces: the first that is balanced."""
BALANCED = 1.05
"""The work of the busiest rank over the mean, at most."""
Array = Any


@cached(most=64)
def balanced_pieces(lengths: tuple[int, ...], ranks: int, causal: bool) -> list[Pieces]:
    """Per rank, its pieces of packed sequences in the order of the pack."""
    starts, best = np.concatenate([[0], np.cumsum(lengths)]), None
    for count in SLICES_PER_RANK:
        ends = np.concatenate([[0], np.cumsum(split(sum(lengths), ranks * count))])
        areas = np.diff(_area(np.array(lengths, dtype=np.int64), ends, causal))
        held, busiest = _dealt(areas, ranks, count)
        if best is None or busiest < best[0]:
            best = busiest, held, ends
        if busiest * ranks <= BALANCED * areas.sum():
            break
    assert best is not None
    return [_pieces(sorted(own), best[2], starts) for own in best[1]]


def _dealt(areas: Array, ranks: int, count: int) -> tuple[list[list[int]], int]:
    """Return the slices of every rank, ``count`` each, and the area of the rank with most."""
    held: list[list[int]] = [[] for _ in range(ranks)]
    free, busiest = [(0, rank) for rank in range(ranks)], 0
    for number in np.argsort(-areas, kind="stable").tolist():
        load, rank = heapq.heappop(free)
        held[rank].append(number)
        load += int(areas[number])
        busiest = max(busiest, load)
        if len(held[rank]) < count:
            heapq.heappush(free, (load, rank))
    return held, busiest


def _area(lengths: Array, ends: Array, causal: bool) -> Array:
    """Return visible pairs of all tokens of the pack before each of ``ends``."""
    each = lengths * (lengths + 1) // 2 if causal else lengths * lengths
    starts = np.concatenate([[0], np.cumsum(lengths)])
    document = np.clip(np.searchsorted(starts, ends, side="right") - 1, 0, len(lengths) - 1)
    inside = ends - starts[document]
    own = inside * (inside + 1) // 2 if causal else inside * lengths[document]
    return np.concatenate([[0], np.cumsum(each)])[document] + own


def _pieces(slices: list[int], ends: Array, starts: Array) -> Pieces:
    """Return slices as pieces of documents; those that follow one another are joined."""
    found: list[Piece] = []
    for number in slices:
        begin, end = int(ends[number]), int(ends[number + 1])
        document = int(np.searchsorted(starts, begin, side="right")) - 1
        while begin < end:
            stop = min(end, int(starts[document + 1]))
            piece = Piece(begin - int(starts[document]), stop - begin, 1, document)
            last = found[-1] if found else None
            if last and last.sequence == document and last.start + last.length == piece.start:
                found[-1] = last._replace(length=last.length + piece.length)
            elif piece.length:
                found.append(piece)
            begin, document = stop, document + 1
    return tuple(found)
