"""Placements: how a tile, tensor or sequence is divided over the units of one scale.

Every layout answers the same question, ``parts(shape, extents)``: which indices of each dimension
belong to each unit. A dimension's share is ``(start, stop)`` or an array of indices. ``ORDERS`` are the ways
of sharing out one dimension, as pieces that each unit holds one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from megatile.core.errors import MegatileError

Share = tuple[int, int] | np.ndarray
Part = tuple[Share, ...]


@dataclass(frozen=True)
class Shard:
    """Dimension ``dim`` is cut into equal runs (the last may be short or empty), or shared out in another of
    ``ORDERS``.

    On a scale of several dimensions ``axis`` chooses the axis of units that shares the work.
    """

    dim: int
    axis: int | None = None
    order: str = "contiguous"


@dataclass(frozen=True)
class Replicate:
    """Every unit has its own full copy."""


@dataclass(frozen=True)
class Partial:
    """Every unit has a full-sized term of a sum (or another ``op``)."""

    op: str = "sum"


@dataclass(frozen=True)
class Mesh:
    """One layout for each axis of a scale with several dimensions."""

    axes: tuple[Shard | Replicate, ...]


@dataclass(frozen=True)
class Owner:
    """Each unit has a product of index sets, as an owner function gave them (one tuple per unit)."""

    sets: tuple[tuple[tuple[int, ...], ...], ...]


Layout = Shard | Replicate | Partial | Mesh | Owner


def has_copies(layout: Layout) -> bool:
    """True if several units hold the same elements, so that each needs a storage of its own."""
    if isinstance(layout, Mesh):
        return any(isinstance(axis, Replicate) for axis in layout.axes)
    return isinstance(layout, (Replicate, Partial))


def is_whole(layout: Layout) -> bool:
    """True if every unit sees all elements."""
    return isinstance(layout, (Replicate, Partial))


def cut(length: int, units: int, rank: int) -> tuple[int, int]:
    """Return the run of a unit when a length is shared out equally, rounded up."""
    size = -(-length // units)
    return min(rank * size, length), min((rank + 1) * size, length)


def coordinates(rank: int, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Return coordinates of a rank; the first extent is x and runs fastest."""
    result = []
    for extent in extents:
        result.append(rank % extent)
        rank = rank // extent  # not in place: the rank may be an array
    return tuple(result)


def part(layout: Layout, shape: tuple[int, ...], extents: tuple[int, ...], rank: int) -> Part:
    """Return the indices of each dimension that the unit ``rank`` holds."""
    whole: list[Share] = [(0, n) for n in shape]
    coords = coordinates(rank, extents)
    if isinstance(layout, Shard):
        units, place = math.prod(extents), rank
        if layout.axis is not None:
            units, place = extents[layout.axis], coords[layout.axis]
        whole[layout.dim] = _share(layout.order, shape[layout.dim], units, place)
    elif isinstance(layout, Mesh):
        return tuple(runs(layout.axes, shape, extents, coords))
    elif isinstance(layout, Owner):
        whole = [_as_share(indices) for indices in layout.sets[rank]]
    return tuple(whole)


def runs(
    axes: Sequence[Layout], shape: tuple[int, ...], extents: tuple[int, ...], coords: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Start and stop of every dimension on the unit at these coordinates, each axis dividing what the ones
    before it leave."""
    found = [(0, n) for n in shape]
    for one, units, place in zip(axes, extents, coords, strict=False):
        if isinstance(one, Shard):
            start, stop = found[one.dim]
            low, high = cut(stop - start, units, place)
            found[one.dim] = (start + low, start + high)
    return found


def _share(order: str, length: int, units: int, rank: int) -> Share:
    if order == "contiguous":
        return cut(length, units, rank)
    return _as_share(tuple(positions(ORDERS[order](length, units, 0)[rank])))


def written_out(shard: Shard, shape: tuple[int, ...], extents: tuple[int, ...]) -> Owner:
    """Return a placement by the indices that each unit holds."""
    return Owner(
        tuple(
            tuple(tuple(range(*s)) if isinstance(s, tuple) else tuple(s.tolist()) for s in held)
            for held in (part(shard, shape, extents, rank) for rank in range(math.prod(extents)))
        )
    )


def _as_share(indices: tuple[int, ...]) -> Share:
    if not indices:
        return (0, 0)
    if indices[-1] - indices[0] + 1 == len(indices):
        return (indices[0], indices[-1] + 1)
    return np.array(indices, dtype=np.int64)


def compose(outer: Share, inner: Share) -> Share:
    """``inner`` counts within ``outer``; the result counts in the storage."""
    if isinstance(outer, tuple) and isinstance(inner, tuple):
        return (outer[0] + inner[0], outer[0] + inner[1])
    if isinstance(outer, tuple):
        return np.asarray(inner) + outer[0]
    return outer[inner[0] : inner[1]] if isinstance(inner, tuple) else outer[inner]


def numpy_index(shares: Sequence[Any]) -> Any:
    """Return the NumPy index of a product of shares: slices, where all are runs."""
    if all(isinstance(share, tuple) for share in shares):
        return tuple([slice(*share) for share in shares])
    return np.ix_(*(np.arange(*s) if isinstance(s, tuple) else s for s in shares))


def share_length(share: Share) -> int:
    return share[1] - share[0] if isinstance(share, tuple) else len(share)


def from_function(owner: Callable[..., Any], shape: tuple[int, ...], extents: tuple[int, ...]) -> Owner:
    """Evaluate an owner function on every index; each unit's elements must form a product of sets."""
    units = math.prod(extents)
    owners = _evaluate(owner, shape, extents)
    if owners.size and (owners.min() < 0 or owners.max() >= units):
        wrong = owners.max() if owners.max() >= units else owners.min()
        raise MegatileError(
            f"the owner function names unit {wrong}, but there are {units} units",
            advice="return a rank from 0 to the number of units - 1",
        )
    return Owner(tuple(_product_sets(owners, shape, unit) for unit in range(units)))


def _evaluate(owner: Callable[..., Any], shape: tuple[int, ...], extents: tuple[int, ...]) -> np.ndarray:
    grid = np.ogrid[tuple(slice(0, n) for n in shape)]
    try:
        result = owner(*grid)
    except (TypeError, ValueError):  # written for single indices, e.g. with min() or an if
        result = np.vectorize(lambda *index: _flatten(owner(*(int(i) for i in index)), extents))(*grid)
    owners = np.asarray(_flatten(result, extents))
    if owners.dtype.kind not in "iu":
        raise MegatileError("the owner function must return a whole number", advice="use // instead of /")
    return owners.reshape((1,) * (len(shape) - owners.ndim) + owners.shape)


def _flatten(owner: Any, extents: tuple[int, ...]) -> Any:
    """Return a tuple of coordinates as a rank."""
    if not isinstance(owner, tuple):
        return owner
    rank, stride = 0, 1
    for coordinate, extent in zip(owner, extents, strict=True):
        rank, stride = rank + coordinate * stride, stride * extent
    return rank


def _product_sets(owners: np.ndarray, shape: tuple[int, ...], unit: int) -> tuple[tuple[int, ...], ...]:
    mine = owners == unit
    sets = []
    for dim, length in enumerate(shape):
        if owners.shape[dim] == 1 and length != 1:  # the owner does not depend on this dimension
            sets.append(np.arange(length) if mine.any() else np.arange(0))
            continue
        others = tuple(d for d in range(owners.ndim) if d != dim)
        sets.append(np.flatnonzero(mine.any(axis=others)))
    expected = math.prod(len(s) for d, s in enumerate(sets) if owners.shape[d] != 1 or shape[d] == 1)
    if mine.any() and int(mine.sum()) != expected:
        raise MegatileError(
            f"the elements of unit {unit} are not a product of per-dimension index sets",
            advice="let the owner be computed from each index separately, e.g. (i // m) + r * (j // n)",
        )
    return tuple(tuple(int(i) for i in s) for s in sets)


class Piece(NamedTuple):
    """``length`` tokens of one sequence at positions start, start+stride, start+2·stride, …"""

    start: int
    length: int
    stride: int = 1
    sequence: int = 0

    def part(self, begin: int, end: int) -> Piece:
        """Return the tokens with local numbers begin..end-1 of this piece."""
        return self._replace(start=self.start + begin * self.stride, length=end - begin)


Pieces = tuple[Piece, ...]


def split(length: int, parts: int) -> list[int]:
    """Return ``length`` in ``parts`` sizes that differ by at most one, the larger ones first."""
    quotient, remainder = divmod(length, parts)
    return [quotient + (i < remainder) for i in range(parts)]


def blocks(length: int, parts: int, sequence: int = 0) -> list[Piece]:
    """Return the sequence cut into ``parts`` consecutive pieces."""
    sizes = split(length, parts)
    return [Piece(end - size, size, 1, sequence) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def local_length(pieces: Sequence[Piece]) -> int:
    """Return how many tokens a rank holds."""
    return sum(piece.length for piece in pieces)


def cut_pieces(pieces: Sequence[Piece], begin: int, end: int) -> Pieces:
    """Return the tokens with local numbers begin..end-1 of a rank that holds ``pieces`` one after the
    other."""
    result, at = [], 0
    for piece in pieces:
        low, high = max(begin, at), min(end, at + piece.length)
        if low < high:
            result.append(piece.part(low - at, high - at))
        at += piece.length
    return tuple(result)


def cuts(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[Pieces]:
    """Return the tokens of ``pieces``, one after the other, in parts of these sizes."""
    return [cut_pieces(pieces, end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def positions(pieces: Sequence[Piece]) -> list[int]:
    """Return the position of each local token in its sequence, in local order."""
    return [p.start + i * p.stride for p in pieces for i in range(p.length)]


def _zigzag(length: int, ranks: int, sequence: int) -> list[list[Piece]]:
    halves = blocks(length, 2 * ranks, sequence)
    return [[halves[r], halves[2 * ranks - 1 - r]] for r in range(ranks)]


ORDERS: dict[str, Callable[[int, int, int], list[list[Piece]]]] = {
    "contiguous": lambda length, ranks, sequence: [[b] for b in blocks(length, ranks, sequence)],
    "zigzag": _zigzag,
    "striped": lambda length, ranks, sequence: [
        [Piece(r, max(0, -((r - length) // ranks)), ranks, sequence)] for r in range(ranks)
    ],
}
"""Ways of sharing out one dimension: rank r holds block r of n; blocks r and 2n-1-r of 2n, which balances
causal work; elements r, r+n, r+2n, …"""
