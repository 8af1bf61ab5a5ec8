"""Collectives inside programs: by the library's algorithms with the program's tiles, and what is uneven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.lowering.shared import checked

import megatile as mt
import megatile.language as T


def test_large_and_small_sizes_have_other_choices() -> None:
    def chosen(rows: int) -> Any:
        @T.program
        def kernel(X: T.Tensor((8 * rows, 64), "f32")):
            with T.Kernel(device=8), T.Scale("device"):
                T.allreduce(T.view(X, layout=T.FullRow))

        return mt.simulate(kernel, machine="mi300x-8").model

    assert chosen(8) == "RCCL direct, MSCCL++"
    assert chosen(1 << 14) == "RCCL direct, Simple"
    assert chosen(1 << 18) == "RCCL hamilton, Simple"


def test_of_blocks_in_a_loop_and_in_two_regions() -> None:
    @T.program
    def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
        with T.Kernel(block=4, threads=32) as bx, T.Scale("device"):
            with T.Scale("block"):
                a = T.alloc((1, 8), "f32")
                T.copy(a, X[bx, 0])
                for _ in T.serial(2):
                    T.allreduce(a, algorithm="ring")
                T.copy(Y[bx, 0], a)
            with T.Scale("block"):
                b = T.alloc((1, 8), "f32")
                T.copy(b, Y[bx, 0])
                T.allreduce(b, op="max", algorithm="tree")
                T.copy(Y[bx, 0], b)

    x, y = np.arange(32, dtype="f4").reshape(4, 8), np.zeros((4, 8), "f4")
    checked(kernel, x, y, np.tile(x.sum(0) * 4, (4, 1)), "dgx-h100")


@pytest.mark.parametrize("sizes", [(8, 4), (9, 4), (7, 4), (3, 4)])
def test_a_divided_tensor_is_gathered(sizes: tuple[int, int]) -> None:
    rows, n = sizes

    @T.program
    def kernel(X: T.Tensor((rows, 5), "f32"), Y: T.Tensor((n, rows, 5), "f32")):
        with T.Kernel(device=n, block=2, threads=32), T.Scale("device"):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.Shard(0))
            everything = T.allgather(x)
            t = T.alloc((rows, 5), "f32", level="l2")
            T.copy(t, everything)
            for i, j in T.Parallel(rows, 5):
                y[0, i, j] = t[i, j] + everything[rows - 1 - i, j]

    x, y = np.arange(rows * 5, dtype="f4").reshape(rows, 5), np.zeros((n, rows, 5), "f4")
    checked(kernel, x, y, np.stack([x + x[::-1]] * n), "dgx-h100")


def test_a_gathered_tensor_is_not_written() -> None:
    @T.program
    def kernel(X: T.Tensor((8, 5), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            everything = T.allgather(T.view(X, layout=T.FullRow))
            T.clear(everything)

    with pytest.raises(mt.MegatileError, match="a write to 'X', which is gathered elsewhere"):
        mt.lower(kernel, machine="dgx-h100")


@pytest.mark.parametrize(("machine", "n"), [("dgx-h100", 3), ("mi300x-8", 3), ("dgx-h100", 2)])
def test_parts_as_long_as_data_says(machine: str, n: int) -> None:
    most = 12

    @T.program
    def kernel(
        X: T.Tensor((n, most, 2), "f32"), C: T.Tensor((n, n), "i32"), Y: T.Tensor((n, most, 2), "f32"),
        R: T.Tensor((n, n), "i32"),
    ):  # fmt: skip
        with T.Kernel(device=n), T.Scale("device") as r:
            x = T.alloc((most, 2), "f32", level="l2")
            y = T.alloc((most, 2), "f32", level="l2")
            counts_1 = T.alloc((n,), "i32", level="l2")  # a name that lowering might take for itself
            received = T.alloc((n,), "i32", level="l2")
            T.copy(x, X[r, 0:most, 0:2])
            T.copy(counts_1, C[r, 0:n])
            T.clear(y)
            T.all_to_all(y, x, counts_1, received)
            T.copy(Y[r, 0:most, 0:2], y)
            T.copy(R[r, 0:n], received)

    counts = np.array([[2, 0, 5], [4, 4, 4], [1, 3, 0]], "i4")[:n, :n].copy()
    x = np.arange(n * most * 2, dtype="f4").reshape(n, most, 2)
    expected = np.zeros_like(x)
    for to in range(n):
        parts = [x[i, counts[i, :to].sum() : counts[i, : to + 1].sum()] for i in range(n)]
        found = np.concatenate(parts)
        expected[to, : len(found)] = found
    result = mt.simulate(kernel, x, counts, np.zeros_like(x), np.zeros_like(counts), machine=machine)
    np.testing.assert_array_equal(result.outputs["Y"], expected)
    np.testing.assert_array_equal(result.outputs["R"], counts.T)
    y, r = np.zeros_like(x), np.zeros_like(counts)
    mt.run(kernel, x, counts, y, r, machine=machine)
    np.testing.assert_array_equal(y, expected)


def test_sums_on_a_device_have_its_memory_although_blocks_run_there_too() -> None:
    """A device's own command takes as long beside regions of blocks as it takes alone."""

    def added(blocks: bool) -> int:
        @T.program
        def kernel(X: T.Tensor((512, 512), "f32")):
            with T.Kernel(device=2, block=1, threads=32), T.Scale("device"):
                t = T.alloc((512, 512), "f32", level="l2")
                T.clear(t)
                if blocks:
                    with T.Scale("block"):
                        x = T.alloc((1, 32), "f32")
                        T.clear(x)
                        T.copy(X[0, 0], x)
                T.allreduce(t, algorithm="ring")
                T.copy(X, t)

        found = mt.simulate(kernel, machine="dgx-h100")
        return max(e.end_ps - e.start_ps for e in found.trace if e.operation == "add")

    assert added(True) == added(False)
