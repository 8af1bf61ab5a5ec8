"""Products of tensors in global memory, which TileLang lacks: tile by tile, through shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatile.core.expr import Expr, Symbol, known, simplify
from megatile.ir import nodes as n
from megatile.ir.program import base_name
from megatile.targets.tilelang.units import dtype

if TYPE_CHECKING:
    from megatile.targets.tilelang.writer import TileLangWriter

_MAX_TILE_MNK = (64, 64, 32)
"""Rows, columns and depth of a tile."""


def is_global(out: TileLangWriter, region: n.Region) -> bool:
    name = base_name(region.source)
    return name in out.workspace or any(p.name == name for p in out.program.params)


def global_product(out: TileLangWriter, node: n.Gemm) -> bool:
    """Write a product whose operands all lie in global memory; False if its extents are not known."""
    extents = [[known(simplify(e)) for e in region.extents] for region in (node.a, node.b, node.c)]
    if any(len(one) != 2 or None in one for one in extents):
        return False
    (rows, columns), depth = extents[2], extents[0][0 if node.transpose_a else 1]
    sizes = [
        _divisor(extent, most) for extent, most in zip((rows, columns, depth), _MAX_TILE_MNK, strict=True)
    ]
    number = len(out.lines)
    names = [out.name(f"{word}_{number}") for word in ("a", "b", "c")]
    loops = [out.name(f"{word}_{number}") for word in ("i", "j", "k")]
    (m, w, k), kinds = sizes, [dtype(out.kinds[r.source]) for r in (node.a, node.b)]
    shapes = ((k, m) if node.transpose_a else (m, k), (w, k) if node.transpose_b else (k, w))
    for name, shape, kind in zip(names, shapes, kinds, strict=False):
        out.add(f'{name} = T.alloc_shared({shape}, "{kind}")')
    out.add(f'{names[2]} = T.alloc_fragment(({m}, {w}), "{dtype(out.kinds[node.c.source])}")')
    places: list[Expr] = [Symbol(loop) * size for loop, size in zip(loops, sizes, strict=True)]
    i, j, d = places
    result = out.part(_tile(node.c, (i, m), (j, w)))

    def steps() -> None:
        first = _tile(node.a, *(((d, k), (i, m)) if node.transpose_a else ((i, m), (d, k))))
        second = _tile(node.b, *(((j, w), (d, k)) if node.transpose_b else ((d, k), (j, w))))
        out.add(f"T.copy({out.part(first)}, {names[0]})")
        out.add(f"T.copy({out.part(second)}, {names[1]})")
        turned = ", transpose_A=True" * node.transpose_a + ", transpose_B=True" * node.transpose_b
        out.add(f"T.gemm({', '.join(names)}{turned})")

    def tile() -> None:
        out.add(f"T.clear({names[2]})" if node.clear else f"T.copy({result}, {names[2]})")
        out.block(f"for {loops[2]} in T.serial({depth // k}):", steps)  # type: ignore[operator]
        out.add(f"T.copy({names[2]}, {result})")

    out.block(
        f"for {loops[0]} in T.serial({rows // m}):",  # type: ignore[operator]
        lambda: out.block(f"for {loops[1]} in T.serial({columns // w}):", tile),  # type: ignore[operator]
    )
    return True


def _divisor(extent: int | None, most: int) -> int:
    assert extent is not None
    return next(size for size in range(min(extent, most), 0, -1) if extent % size == 0)


def _tile(region: n.Region, *parts: tuple[Expr, int]) -> n.Region:
    """Return a part of a region, by an offset and a size for each of its dimensions."""
    left = iter(parts)
    dims = []
    for dim in region.dims:
        if dim.extent is None:
            dims.append(dim)
            continue
        offset, size = next(left)
        dims.append(n.Dim(simplify(dim.start + offset), simplify(dim.extent * 0 + size)))
    return n.Region(region.source, tuple(dims))
