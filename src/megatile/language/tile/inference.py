"""The layout of ``T.view(x)`` without one, from its uses.

While nothing is known, such a view is read as if every unit had a copy. The first use with which only one
way of dividing it is consistent raises `LayoutFound`, and the kernel is read again with that layout:

* a product divides rows (of A and C), columns (of B and C) or the inner extent (of A and B) over the units;
  where several ways remain, ``policy=`` says which;
* both sides of a copy, and the source and result of a reduction, are divided in the same way;
* elements at equal indices in elementwise code belong to the same unit;
* extents of the other side that only one layout gives (unless they were taken from the view itself).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from megatile.core.expr import Expr, known, walk
from megatile.core.placement import Layout, Partial, Replicate, Shard, is_whole
from megatile.ir.expr import Load
from megatile.language.tile.tiles import Tile

if TYPE_CHECKING:
    from megatile.language.tile.builder import ProgramBuilder
    from megatile.language.tile.regions import Operand

Key = tuple[str, str]
"""What is viewed, and at which scale."""
WAYS = {"rows": (0, None, 0), "columns": (None, 1, 1), "inner": (1, 0, None), "": (None, None, None)}
"""How units may share a product: the dimension of A, B and C that is divided."""
POLICIES = {"FullRow": "rows", "FullCol": "columns"}
ADVICE = (
    "layout=T.FullRow (rows shared out), T.FullCol, T.Replica (a copy each), T.Partial(op) or "
    "a function from index to unit"
)


class LayoutFound(BaseException):
    """The uses of a view say how it is divided: read the kernel again."""

    def __init__(self, key: Key, layout: Layout):
        super().__init__(key, layout)
        self.key, self.layout = key, layout


class OpenView(Tile):
    """A view whose layout is not known yet; remembers whether its shape was asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("shape", "bound"):
            asked_by = sys._getframe(1).f_globals.get("__name__", "")
            if not asked_by.startswith("megatile."):
                object.__getattribute__(self, "builder").asked.add(self.key)
        return object.__getattribute__(self, name)

    @property
    def key(self) -> Key:
        assert self.base is not None
        return self.base.name, self.scale


class Candidate(NamedTuple):
    layout: Layout
    extents: tuple[int, ...]
    dim: int | None
    """The dimension that is divided."""


def candidates(builder: ProgramBuilder, view: OpenView) -> Iterator[Candidate]:
    """Yield a copy each, or one dimension divided evenly."""
    base = view.base
    assert base is not None
    whole = tuple(int(e) for e in base.bound)
    units = math.prod(builder.plan.grid(view.scale, base.scale))
    yield Candidate(Replicate(), whole, None)
    for dim, extent in enumerate(whole):
        if units > 1 and extent % units == 0:
            yield Candidate(Shard(dim), (*whole[:dim], extent // units, *whole[dim + 1 :]), dim)


def _settle(view: OpenView, found: Iterable[Candidate | Layout]) -> None:
    """Exactly one layout is left: that is it."""
    layouts = {one.layout if isinstance(one, Candidate) else one for one in found}
    if len(layouts) == 1:
        raise LayoutFound(view.key, layouts.pop())


def _same_grid(builder: ProgramBuilder, one: Tile, other: Tile) -> bool:
    """Return whether the units that share two views are the same."""
    if one.base is None or other.base is None or one.scale != other.scale:
        return False
    return builder.plan.grid(one.scale, one.base.scale) == builder.plan.grid(other.scale, other.base.scale)


def _is_known(builder: ProgramBuilder, view: Tile, other: Operand) -> bool:
    """Return whether the other operand is a whole view whose layout says how this one is divided."""
    tile = other.tile
    return (
        other.is_whole
        and not isinstance(tile, OpenView)
        and _same_grid(builder, view, tile)
        and isinstance(tile.layout, (Shard, Replicate))
    )


def _fits(extents: tuple[int, ...], other: tuple[Expr, ...]) -> bool:
    sizes = [known(e) for e in other]
    theirs, mine = [s for s in sizes if s != 1], [e for e in extents if e != 1]
    return None not in sizes and theirs == mine


def same_shape(builder: ProgramBuilder, left: Operand, right: Operand, dim: int | None = None) -> None:
    """Two sides of a copy, or a source and its result without dimension ``dim``."""
    if not builder.open:
        return
    for side, other in ((left, right), (right, left)):
        view = side.tile
        if not isinstance(view, OpenView) or not side.is_whole or other.is_anchor:
            continue
        if _is_known(builder, view, other):
            moved = _moved(other.tile.layout, dim, removed=side is right)
            _settle(view, [] if moved is None else [moved])
        elif view.key not in builder.asked and not isinstance(other.tile, OpenView):
            _settle(view, [c for c in candidates(builder, view) if _agrees(c, other, dim, side is left)])


def _moved(layout: Layout | None, dim: int | None, removed: bool) -> Layout | None:
    """Return the layout on the other side of a reduction over ``dim``."""
    if dim is None or isinstance(layout, Replicate):
        return layout if dim is None or removed else None
    if not isinstance(layout, Shard) or (removed and layout.dim == dim):
        return None
    return Shard(layout.dim - (layout.dim > dim) if removed else layout.dim + (layout.dim >= dim))


def _agrees(one: Candidate, other: Operand, dim: int | None, source: bool) -> bool:
    if dim is None:
        return _fits(one.extents, other.extents)
    if source:
        return one.dim != dim and _fits((*one.extents[:dim], *one.extents[dim + 1 :]), other.extents)
    return _fits(one.extents, (*other.extents[:dim], *other.extents[dim + 1 :]))


def matrix_product(
    builder: ProgramBuilder,
    sides: tuple[Operand, Operand, Operand],
    transposed: tuple[bool, bool],
    policy: str,
) -> None:
    """``C += A @ B``: the ways of sharing it that what is known of A, B and C allows."""
    if not any(isinstance(side.tile, OpenView) for side in sides):
        return
    turned = (*transposed, False)
    left: dict[str, list[Any]] = {}
    for way, dims in WAYS.items():
        wanted = [d if d is None or not t else 1 - d for d, t in zip(dims, turned, strict=True)]
        choices = [list(_choices(builder, s, d)) for s, d in zip(sides, wanted, strict=True)]
        shares = [c for c in product(*choices) if _multiply([e for _, e in c], turned)]
        if shares:
            left[way] = [layout for layout, _ in shares[0]]
    chosen = next(iter(left)) if len(left) == 1 else POLICIES.get(policy, "")
    if not chosen or chosen not in left:
        return
    for side, layout in zip(sides, left[chosen], strict=True):
        if isinstance(side.tile, OpenView):
            raise LayoutFound(side.tile.key, Partial() if chosen == "inner" and is_whole(layout) else layout)


def _choices(
    builder: ProgramBuilder, side: Operand, dim: int | None
) -> Iterator[tuple[Layout | None, tuple[Any, ...]]]:
    """Yield the layouts and extents of an operand in a way that divides ``dim`` of it."""
    tile = side.tile
    if isinstance(tile, OpenView):
        if side.is_whole:
            yield from ((c.layout, c.extents) for c in candidates(builder, tile) if c.dim == dim)
        return
    layout = tile.layout if tile.is_view and tile.scale == builder.scale else None
    divided = layout.dim if isinstance(layout, Shard) else None
    if layout is None or divided == dim:
        yield layout, tuple(known(e) for e in side.extents)


def _multiply(extents: list[tuple[Any, ...]], turned: tuple[bool, ...]) -> bool:
    (m, k), (k2, columns), c = (e[-2:][::-1] if t else e[-2:] for e, t in zip(extents, turned, strict=True))
    pairs = ((k, k2), (m, c[0]), (columns, c[1]))
    return all(a == b or None in (a, b) for a, b in pairs)


def elementwise(builder: ProgramBuilder, target: str, index: tuple[Expr, ...], value: Expr) -> None:
    """``x[i, j] = f(y[i, j], …)``: elements at the same index belong to the same unit."""
    if not builder.open:
        return
    used = [(target, index)] + [(node.source, node.index) for node in walk(value) if isinstance(node, Load)]
    tiles = [(builder.tiles[name], at) for name, at in used if name in builder.tiles]
    for view, mine in tiles:
        for other, theirs in tiles if isinstance(view, OpenView) else ():
            if isinstance(other, OpenView) or not _same_grid(builder, view, other):
                continue
            if isinstance(other.layout, Replicate) and mine == theirs:
                _settle(view, [other.layout])  # type: ignore[arg-type]
            elif isinstance(other.layout, Shard) and theirs[other.layout.dim] in mine:
                _settle(view, [Shard(mine.index(theirs[other.layout.dim]))])  # type: ignore[arg-type]
