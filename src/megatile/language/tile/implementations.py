"""Implementations of primitives that are written in ``T`` themselves."""

from __future__ import annotations

from typing import Any

from megatile.core.placement import Shard
from megatile.ir.implementations import by_blocks_ps, implementation
from megatile.language.tile.memory import view
from megatile.language.tile.operations import gemm
from megatile.language.tile.scales import Scale


@implementation("gemm", "cluster", price=by_blocks_ps)
def cluster_gemm(A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False) -> None:
    """Each block of a larger unit computes its rows of C from its rows of A and all of B, which lies spread
    over the blocks' shared memories."""
    with Scale("block"):
        rows = view(A, layout=Shard(1 if transpose_A else 0))
        gemm(rows, B, view(C, layout=Shard(0)), transpose_A=transpose_A, transpose_B=transpose_B)
