"""Block-scaled products: factors of few bits with a scale for each run of elements along K."""

from __future__ import annotations

from typing import Any

from megatile.compat.tilelang import buffers as b
from megatile.compat.tilelang.functions import Cast, reinterpret
from megatile.compat.tilelang.operations import gemm
from megatile.core.expr import Symbol as Var, known
from megatile.language.tile import operations as ops
from megatile.language.tile.builder import current
from megatile.language.tile.errors import ProgramError
from megatile.language.tile.regions import operand
from megatile.language.tile.scalars import Value, as_expr

_BYTES = 4
"""Scales in a word of 32 bits, the first in the low bits."""


def mma_gemm_blockscaled(
    A: Any, B: Any, C: Any, SFA: Any, SFB: Any, transpose_A: bool = False, transpose_B: bool = False,
    policy: Any = None, clear_accum: Any = False, *, k_start: Any, sf_a_granularity_k: int,
    sf_b_granularity_k: int, sf_layout: str | None = None,
) -> None:  # fmt: skip
    """``C += (A * scales) @ (B * scales)``: factors are multiplied by their scales, then with each other.

    Row ``i`` of ``SFA`` has the scales of row ``i`` of A as E4M3 numbers, four in a word: one for each
    ``sf_a_granularity_k`` elements, counted from ``k_start``.
    """
    if sf_layout is not None:
        raise ProgramError(
            f"T.mma_gemm_blockscaled with sf_layout='{sf_layout}' has no counterpart in megatile",
            advice="give rows of scales in their order, without sf_layout=",
        )
    left = _dequantised(A, SFA, transpose_A, k_start, sf_a_granularity_k)
    right = _dequantised(B, SFB, not transpose_B, k_start, sf_b_granularity_k)
    gemm(left, right, C, transpose_A, transpose_B, clear_accum=clear_accum)


def _dequantised(factor: Any, scales: Any, k_first: bool, k_start: Any, run: int) -> Any:
    """A tile of f32 with a factor times its scales, which are along its first or its second dimension."""
    side, words = operand(factor, "a factor"), operand(scales, "the scales of a factor")
    extents = [known(e) for e in side.extents][-2:]
    if len(words.extents) != 2 or words.tile.dtype != "u32":
        raise ProgramError(
            f"scales '{words.tile.name}' are {words.tile.dtype} with {len(words.extents)} dimensions",
            advice="a row of uint32 for each row of the factor",
        )
    count = known(words.extents[1])
    tile = b.alloc_fragment(extents, "float32")
    names = tuple(current().fresh("i") for _ in extents)
    with ops.elementwise_nest(names, tuple(map(as_expr, extents))):
        indices = [Var(name) for name in names]
        row, k = reversed(indices) if k_first else indices
        number = (Value(k) + k_start) // run
        word = ops.element_of(words, [row, as_expr(number // _BYTES % count)])
        scale = reinterpret("float8_e4m3fn", Cast("uint8", word >> Cast("uint32", number % _BYTES * 8)))
        element = ops.element_of(side, indices)
        tile[tuple(map(Value, indices))] = Cast("float32", element) * Cast("float32", scale)
    return tile
