"""Operations on tensors in memory, streamed tile by tile: what the scheduler of a processing element does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatile.core.expr import ZERO, Expr, minimum
from megatile.language.kernel.values import Ref, TileRef
from megatile.plan.build import Handle, Part, PlanBuilder


@dataclass(frozen=True)
class Matrix:
    """Memory as rows of ``columns`` elements: rows of a matrix from ``first`` on, or of a flat tensor."""

    tensor: Handle
    columns: int
    first: Expr
    at: Expr | None
    flat: bool

    def block(self, row: Any, column: Any, height: Any, width: Any) -> Part:
        """Return a block of a matrix, or (of a flat tensor) whole rows or a part of one."""
        if self.flat:
            low = self.first + row * self.columns + column
            part = self.tensor[low : low + height * width]
        else:
            part = self.tensor[self.first + row : self.first + row + height, column : column + width]
        return part if self.at is None else part.at(self.at)


def stream_gemm(tl: Any, a: Ref | TileRef, b: Ref | TileRef, out: Any, tile: tuple[int, ...]) -> None:
    """out = a @ b. An operand in memory (``tl.ref``) has two buffers, so that loads of the next step overlap
    the product of this one; one that was loaded (``tl.load``) is used where it is."""
    for operand in (a, b):
        if not isinstance(operand, (Ref, TileRef)) or len(operand.shape) != 2:
            raise tl.error("composite('gemm') takes two matrices, each of tl.ref or tl.load")
    if len(tile) != 3 or any(extent < 1 for extent in tile):
        raise tl.error(f"composite('gemm') takes tile=(m, n, k), not {tile}")
    (rows, inner), (inner_b, columns) = a.shape, b.shape
    if inner != inner_b:
        raise tl.error(f"gemm: inner extents {inner} and {inner_b} differ")
    plan, scratch = tl.reader.plan, tl.settings.scratch
    target = matrix_at(tl, Ref(out, (rows, columns), a.dtype), write=True)
    tm, tn, tk = (min(t, e) for t, e in zip(tile, (rows, columns, inner), strict=True))
    # Ragged edges are cut to what is there, so the tiles hold at most tm x tk, tk x tn and tm x tn elements.
    left = operand_of(tl, "a_tile", a, (tm, tk))
    right = operand_of(tl, "b_tile", b, (tk, tn))
    total = plan.tile("total", (tm, tn), "f32", memory=scratch, versions=2)
    with plan.loop(0, rows, tm, index="m") as m, plan.loop(0, columns, tn, index="n") as n:
        height, width = minimum(tm, rows - m.index), minimum(tn, columns - n.index)
        plan.compute("fill", total[0:height, 0:width], [], fresh=True, value=0)
        with plan.loop(0, inner, tk, index="k") as k:
            depth = minimum(tk, inner - k.index)
            parts = [
                left.block(plan, (m.index, k.index), (height, depth), tk == inner),
                right.block(plan, (k.index, n.index), (depth, width), tn == columns),
            ]
            part = total[0:height, 0:width]
            plan.compute("gemm_add", part, [*parts, part])
        store(plan, target, total, (m.index, n.index), (height, width), tn == columns)


@dataclass(frozen=True)
class Operand:
    """A matrix of a product: a loaded tile, or blocks of a ``source`` in memory that go through ``tile``."""

    tile: Handle
    source: Matrix | None

    def block(self, plan: PlanBuilder, low: Any, extents: Any, whole: bool) -> Part:
        """Return a block in near memory, loaded if it is not there."""
        height, width = extents
        if self.source is None:
            return self.tile[low[0] : low[0] + height, low[1] : low[1] + width]
        load(plan, self.tile, self.source, low, extents, whole)
        return self.tile[0:height, 0:width]


def operand_of(tl: Any, name: str, given: Ref | TileRef, shape: tuple[int, int]) -> Operand:
    if isinstance(given, TileRef):
        return Operand(given.handle(), None)
    scratch = tl.reader.plan.tile(name, shape, given.dtype, memory=tl.settings.scratch, versions=2)
    return Operand(scratch, matrix_at(tl, given))


def matrix_at(tl: Any, ref: Ref, write: bool = False) -> Matrix:
    """Return the rows behind a pointer: a whole tensor, whole rows of one, or as many elements of a flat one
    or of raw memory."""
    shape = tuple(ref.shape)
    part: Part = tl.memory_at(ref.pointer, shape, ref.dtype, write=write)
    tensor, start = part.handle, part.region.start
    if len(tensor.shape) == 2 and tensor.shape[1] == shape[1]:
        return Matrix(tensor, shape[1], start[0] if start else ZERO, part.region.at, flat=False)
    if len(tensor.shape) == 1:
        return Matrix(tensor, shape[1], start[0] if start else ZERO, part.region.at, flat=True)
    raise tl.error(
        f"composite takes rows of tensor '{tensor.name}', which have {tensor.shape[-1]} elements, "
        f"not {shape[1]}",
        advice="use a ref with as many columns as the tensor, or a tensor of one dimension",
    )


def load(plan: PlanBuilder, tile: Handle, source: Matrix, low: Any, extents: Any, whole: bool) -> None:
    """Bring a block into a new version of a tile; from a flat tensor row by row unless rows are whole."""
    height, width = extents
    if whole or not source.flat:
        plan.copy(tile[0:height, 0:width], source.block(low[0], low[1], height, width), fresh=True)
        return
    plan.copy(tile[0:1, 0:width], source.block(low[0], low[1], 1, width), fresh=True)
    with plan.loop(1, height, index="row") as row:
        r = row.index
        plan.copy(tile[r : r + 1, 0:width], source.block(low[0] + r, low[1], 1, width))


def store(plan: PlanBuilder, target: Matrix, tile: Handle, low: Any, extents: Any, whole: bool) -> None:
    height, width = extents
    if whole or not target.flat:
        plan.copy(target.block(low[0], low[1], height, width), tile[0:height, 0:width])
        return
    with plan.loop(0, height, index="row") as row:
        r = row.index
        plan.copy(target.block(low[0] + r, low[1], 1, width), tile[r : r + 1, 0:width])
