"""Operations on tensors in memory, streamed tile by tile: what the scheduler of a processing element does."""

from __future__ import annotations

from typing import Any

from megatile.language.values import Pointer, Ref
from megatile.plan.build import Handle, Part
from megatile.plan.expr import minimum


def stream_gemm(tl: Any, a: Ref, b: Ref, out: Any, tile: tuple[int, ...]) -> None:
    """out = a @ b with two buffers per operand: loads of the next step overlap the product of this one."""
    for operand in (a, b):
        if not isinstance(operand, Ref) or len(operand.shape) != 2:
            raise tl.error("composite('gemm') takes two tl.ref matrices")
    (rows, inner), (inner_b, columns) = a.shape, b.shape
    if inner != inner_b:
        raise tl.error(f"gemm: inner extents {inner} and {inner_b} differ")
    plan, scratch = tl.reader.plan, tl.settings.scratch
    source_a, source_b = _matrix(tl, a.pointer, a.shape, a.dtype), _matrix(tl, b.pointer, b.shape, b.dtype)
    target = _matrix(tl, out, (rows, columns), a.dtype)
    tm, tn, tk = (min(t, e) for t, e in zip(tile, (rows, columns, inner), strict=True))
    # Ragged edges are cut to what is there, so the tiles hold at most tm x tk, tk x tn and tm x tn elements.
    left = plan.tile("a_tile", (tm, tk), a.dtype, memory=scratch, versions=2)
    right = plan.tile("b_tile", (tk, tn), b.dtype, memory=scratch, versions=2)
    total = plan.tile("total", (tm, tn), "f32", memory=scratch, versions=2)
    with plan.loop(0, rows, tm, index="m") as m, plan.loop(0, columns, tn, index="n") as n:
        height, width = minimum(tm, rows - m.index), minimum(tn, columns - n.index)
        plan.compute("fill", total[0:height, 0:width], [], fresh=True, value=0)
        with plan.loop(0, inner, tk, index="k") as k:
            depth = minimum(tk, inner - k.index)
            low = m.index, n.index, k.index
            plan.copy(left[0:height, 0:depth], _block(source_a, low[0], low[2], height, depth), fresh=True)
            plan.copy(right[0:depth, 0:width], _block(source_b, low[2], low[1], depth, width), fresh=True)
            part = total[0:height, 0:width]
            plan.compute("gemm_add", part, [left[0:height, 0:depth], right[0:depth, 0:width], part])
        plan.copy(_block(target, m.index, n.index, height, width), total[0:height, 0:width])


def _matrix(tl: Any, pointer: Any, shape: tuple[int, ...], dtype: str) -> Handle:
    """The tensor behind a pointer, if it is that matrix and nothing else."""
    if not isinstance(pointer, Pointer) or pointer.tensor.shape != tuple(shape):
        raise tl.error(f"composite needs a pointer to a tensor of shape {tuple(shape)}")
    part: Part = tl.tensor_region(pointer, tuple(shape), dtype)
    if part.region.start or part.region.at is not None:
        raise tl.error("composite works on the unit's own whole tensors")
    return part.handle


def _block(matrix: Handle, row: Any, column: Any, height: Any, width: Any) -> Part:
    return matrix[row : row + height, column : column + width]
