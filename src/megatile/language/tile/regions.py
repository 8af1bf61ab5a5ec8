"""What an operand of a tile operation denotes: whole tiles, slices and anchors, matched with each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from megatile.core.expr import Expr, known, linear
from megatile.ir.nodes import Dim, Region
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.scalars import as_value
from megatile.language.tile.tiles import OwnCopy, Ref, StridedRef, Tile, argument, shape_text, whole_dims


@dataclass(frozen=True)
class Operand:
    """A tile or region given to an operation."""

    tile: Tile
    dims: tuple[Dim, ...]
    is_whole: bool = False

    @property
    def is_anchor(self) -> bool:
        return all(d.extent is None for d in self.dims)

    @property
    def extents(self) -> tuple[Expr, ...]:
        return tuple(d.extent for d in self.dims if d.extent is not None)

    @property
    def is_tile_view(self) -> bool:
        return self.is_whole and self.tile.is_view and not self.tile.is_tensor

    def region(self) -> Region:
        return Region(self.tile.name, self.dims)

    def text(self) -> str:
        return f"'{self.tile.name}' {extents_text(self.extents)}"


def extents_text(extents: tuple[Expr, ...]) -> str:
    return shape_text(tuple(as_value(e) for e in extents))


def operand(value: Any, what: str) -> Operand:
    """Return the operand a user wrote; ``what`` names it in errors."""
    value = argument(value)
    if isinstance(value, OwnCopy):
        value = value[...]
    if isinstance(value, Tile):
        return Operand(value, whole_dims(value), True)
    if isinstance(value, StridedRef):
        raise ProgramError(
            f"{what} is a slice of '{value.tile.name}' with a step",
            advice=f"copy it into a tile first: T.copy(tile, {value.tile.name}[i:j:n])",
        )
    if isinstance(value, Ref):
        return Operand(value.tile, value.dims)
    raise ProgramError(
        f"{what} must be a tile or a region of one, not {type(value).__name__}",
        advice="give a tensor, a tile from T.alloc, a view, or a region such as A[i, j] or A[i:i+n, :]",
    )


def fixed(value: Any, what: str) -> Operand:
    """Return an operand that has its own extents (no anchor)."""
    result = operand(value, what)
    if result.is_anchor and result.tile.ndim:
        raise ProgramError(
            f"{what} is the anchor '{result.tile.name}[...]', which has no extents of its own",
            advice="write slices, e.g. A[i:i+n, :], or copy the region into a tile first",
        )
    return result


def matched(to: Operand, source: Operand) -> tuple[Region, Region]:
    """Return both regions of a copy, with an anchor's extents taken from the other side."""
    if not (to.is_anchor or source.is_anchor):
        _check_same(to, source)
    left = _anchored(to, source) if to.is_anchor and not source.is_anchor else to.region()
    right = _anchored(source, to) if source.is_anchor and not to.is_anchor else source.region()
    return left, right


def _anchored(anchor: Operand, other: Operand) -> Region:
    extents = other.extents
    while len(extents) > len(anchor.dims) and known(extents[0]) == 1:
        extents = extents[1:]
    spare = len(anchor.dims) - len(extents)
    if spare < 0:
        raise ProgramError(
            f"the anchor '{anchor.tile.name}[...]' has {len(anchor.dims)} dimensions, {other.text()} has "
            f"more",
            advice="index every dimension of the larger side",
        )
    _check_mapping(anchor, extents, spare)
    dims = [Dim(d.start) for d in anchor.dims[:spare]]
    dims += [Dim(d.start, e, True) for d, e in zip(anchor.dims[spare:], extents, strict=True)]
    return Region(anchor.tile.name, tuple(dims), other.tile.name if other.is_tile_view else None)


def _check_mapping(anchor: Operand, extents: tuple[Expr, ...], spare: int) -> None:
    """Refuse an anchor whose last dimensions begin no block where others would hold the extents.

    ``K[page, 0, h, 0]`` and a tile of two dimensions: the last two are meant only if h begins a block.
    """
    bound, starts = anchor.tile.bound, [d.start for d in anchor.dims]
    sizes = [known(e) for e in extents]
    last = tuple(range(spare, len(starts)))
    if not spare or anchor.tile.padded or None in sizes:
        return
    if all(_begins_block(starts[d], n or 0, bound[d]) for d, n in zip(last, sizes, strict=True)):
        return
    for other in combinations(range(len(starts)), len(sizes)):
        pairs = zip(other, sizes, strict=True)
        if other != last and all(known(starts[d]) == 0 and (n or 0) <= bound[d] for d, n in pairs):
            index = ", ".join(s.text() for s in starts)
            raise ProgramError(
                f"the anchor [{index}] of '{anchor.tile.name}' is ambiguous: it has "
                f"{len(starts)} dimensions, the other side {extents_text(extents)} has {len(sizes)}",
                advice=f"write slices: {_sliced(anchor, extents, other)} or {_sliced(anchor, extents, last)}",
            )


def _begins_block(start: Expr, extent: int, bound: int) -> bool:
    """Return whether blocks of an extent that begin here tile a dimension."""
    terms, offset = linear(start)
    return extent <= 1 or (extent <= bound and all(n % extent == 0 for n in (*terms.values(), offset)))


def _sliced(anchor: Operand, extents: tuple[Expr, ...], dims: tuple[int, ...]) -> str:
    texts = [d.start.text() for d in anchor.dims]
    for d, extent in zip(dims, extents, strict=True):
        whole = texts[d] == "0" and known(extent) == anchor.tile.bound[d]
        low = "" if texts[d] == "0" else texts[d]
        texts[d] = ":" if whole else f"{low}:{texts[d]} + {extent.text()}" if low else f":{extent.text()}"
    return f"{anchor.tile.name}[{', '.join(texts)}]"


def _significant(extents: tuple[Expr, ...]) -> list[Expr]:
    return [e for e in extents if known(e) != 1]


def same_extents(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
    """Return whether two shapes agree; extents known only at run time are checked then. Ones may be
    dropped."""
    if len(left) != len(right):
        left, right = tuple(_significant(left)), tuple(_significant(right))
    pairs = [(known(a), known(b)) for a, b in zip(left, right, strict=False)]
    return len(left) == len(right) and all(x is None or y is None or x == y for x, y in pairs)


def _check_same(to: Operand, source: Operand) -> None:
    if same_extents(to.extents, source.extents):
        return
    advice = "give both sides the same extents"
    for side in (to, source):
        if side.tile.is_view or side.tile.is_tensor:
            continue
        other = source if side is to else to
        if other.tile.is_tensor and other.is_whole:
            advice = (
                f"say where: an anchor, '{other.tile.name}[i, j]', takes its extents from '{side.tile.name}'"
            )
    raise ProgramError(f"T.copy: {to.text()} and {source.text()} have different shapes", advice=advice)
