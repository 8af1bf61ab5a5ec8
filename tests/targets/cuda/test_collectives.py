"""``targets/cuda/collectives.py``: units of a block that meet."""

from __future__ import annotations

import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.common.errors import CompileError


def meeting(kind: str):
    @T.program
    def program(X: T.Tensor((4, 8), "f32"), C: T.Tensor((4, 4), "i32")):
        with T.Kernel(block=1, warp=4), T.Scale("warp") as (rank, _):
            x = T.alloc((4, 8), "f32", level="l1")
            y = T.alloc((4, 8), "f32", level="l1")
            counts = T.alloc((4,), "i32", level="l1")
            received = T.alloc((4,), "i32", level="l1")
            T.copy(counts, C[rank, :])
            T.clear(x)
            T.clear(y)
            if kind == "sum":
                T.allreduce(x)
            elif kind == "larger":
                T.allreduce(x, y, fn=lambda a, b: (T.max(a[0], b[0]), T.max(a[1], b[1])))
            else:
                T.all_to_all(y, x, counts, received)
            T.copy(X[rank, :], x[0, :])

    return program


def test_sums_of_warps_are_written() -> None:
    assert "kept[" in mt.export(meeting("sum"), "cuda", machine="hgx-a100")


def test_blocks_as_long_as_data_says_are_refused() -> None:
    with pytest.raises(CompileError, match="T.all_to_all with counts cannot be written as CUDA yet"):
        mt.export(meeting("counts"), "cuda", machine="hgx-a100")
