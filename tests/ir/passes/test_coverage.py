"""``ir/passes/coverage.py``: rows and columns of arguments that no unit reaches."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import megatile.language as T
from megatile.hda import machine
from megatile.ir.passes.coverage import unreached


def texts(program: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [text for text, _, _ in unreached(program.build(machine("dgx-h100")))]


def copied(size: int, step: int, blocks: int, start: int = 0) -> Any:
    @T.program
    def kernel(X: T.Tensor((size,), "f32"), Y: T.Tensor((size,), "f32")):
        with T.Kernel(block=blocks, threads=32) as b:
            x = T.alloc((step,), "f32")
            T.copy(x, X[b * step + start])
            T.copy(Y[b * step + start], x)

    return kernel


@pytest.mark.parametrize(
    ("size", "step", "blocks", "left"),
    [
        (96, 32, 3, None),
        (100, 32, 4, None),  # the last block reaches over the edge
        (100, 32, 3, "each index from 96 to 99"),
        (97, 32, 3, "index 96"),
        (96, 64, 1, "each index from 64 to 95"),
    ],
)
def test_a_grid_that_is_rounded_down_leaves_the_last_elements(size, step, blocks, left) -> None:
    expected = [] if left is None else [f"{left} of dimension 0 of '{n}' is never {w}"
                                        for n, w in (("X", "read"), ("Y", "written"))]  # fmt: skip
    assert texts(copied(size, step, blocks)) == expected


def test_loops_count_and_arguments_read_elsewhere_do_not() -> None:
    @T.program
    def kernel(X: T.Tensor((100,), "f32"), Y: T.Tensor((100,), "f32")):
        with T.Kernel(block=1, threads=32):
            x = T.alloc((32,), "f32")
            for i in T.serial(100 // 32):
                T.copy(x, X[i * 32])
                T.copy(Y[i * 32], x)
            T.copy(x, Y[0])

    assert texts(kernel) == ["each index from 96 to 99 of dimension 0 of 'X' is never read"]


@pytest.mark.parametrize("width", [16, 1])
def test_shifts_and_stencils_leave_borders_on_purpose(width: int) -> None:
    """The same steps reach the end of the other argument: the grid was not rounded down."""

    @T.program
    def shift(X: T.Tensor((65,), "f32"), Y: T.Tensor((65,), "f32")):
        with T.Kernel(block=64 // 16, threads=32) as b:
            x = T.alloc((16,), "f32")
            if width == 1:
                for i in T.Parallel(16):
                    x[i] = X[b * 16 + i]
                for i in T.Parallel(16):
                    Y[b * 16 + i + 1] = x[i]
            else:
                T.copy(x, X[b * 16])
                T.copy(Y[b * 16 + 1], x)

    @T.program
    def stencil(X: T.Tensor((66,), "f32"), Y: T.Tensor((66,), "f32")):
        with T.Kernel(block=64 // 16, threads=32) as b:
            for i in T.Parallel(16):
                Y[b * 16 + i + 1] = X[b * 16 + i] + X[b * 16 + i + 1] + X[b * 16 + i + 2]

    assert texts(shift) == texts(stencil) == []


def test_one_row_for_each_block_does_not_hide_what_blocks_leave() -> None:
    @T.program
    def parts(X: T.Tensor((100,), "f32"), P: T.Tensor((3, 32), "f32")):
        with T.Kernel(block=100 // 32, threads=32) as b:
            x = T.alloc((32,), "f32")
            T.copy(x, X[b * 32])
            T.copy(P[b, 0], x)

    assert texts(parts) == ["each index from 96 to 99 of dimension 0 of 'X' is never read"]
