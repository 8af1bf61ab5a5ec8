"""Tile programs that are timed to learn what compiled code attains on this computer."""

# mypy: disable-error-code="valid-type,no-untyped-def"
from __future__ import annotations

from functools import partial
from typing import Any

import megatile.language as T


def _on_tile(step: Any, rows: int, columns: int, steps: int, dtype: str = "f32") -> Any:
    """Return what a step does to each element of a tile, again and again."""

    @T.program
    def kernel(X: T.Tensor((rows, columns), dtype)):
        with T.Kernel(block=1, threads=128):
            x = T.alloc((rows, columns), dtype)
            T.copy(x, X[0, 0])
            for _ in T.serial(steps):
                for i, j in T.Parallel(rows, columns):
                    step(x, i, j)
            T.copy(X[0, 0], x)

    return kernel


@T.macro
def _scaled(x, i, j):
    """Read and written, with next to no work."""
    x[i, j] = 1.0 - x[i, j]


@T.macro
def _polynomial(x, i, j):
    """Ten multiplications and ten additions."""
    a = x[i, j]
    b = a * 0.3 + 0.1
    c = (b * a + 0.2) * b + 0.1
    d = (c * b + 0.1) * c + a
    e = (d * 0.1 + a) * 0.2 + b
    f = (e * b + 0.1) * d * 0.1 + 0.3
    x[i, j] = (f * 0.1 + 0.1) * 0.3 + 0.2


POLYNOMIAL = 21
"""Operations of it for each element."""


@T.macro
def _exponential(x, i, j):
    """Return one special function."""
    x[i, j] = T.exp(0.5 - x[i, j])


scaling, polynomial, exponentials = (partial(_on_tile, s) for s in (_scaled, _polynomial, _exponential))


def products(m: int, n: int, k: int, steps: int, dtype: str = "f32") -> Any:
    """Products of tiles, added up."""
    total = dtype if dtype == "f64" else "f32"

    @T.program
    def kernel(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), total)):
        with T.Kernel(block=1, threads=128):
            a = T.alloc((m, k), dtype, level="l1")
            b = T.alloc((k, n), dtype, level="l1")
            c = T.alloc((m, n), total)
            T.copy(a, A[0, 0])
            T.copy(b, B[0, 0])
            T.clear(c)
            for _ in T.serial(steps):
                T.gemm(a, b, c)
            T.copy(C[0, 0], c)

    return kernel


def copies(count: int, block: int) -> Any:
    """Return an array through tiles into another."""

    @T.program
    def kernel(X: T.Tensor((count,), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(block=T.ceildiv(count, block), threads=128) as bx:
            x = T.alloc((block,), "f32")
            T.copy(x, X[bx * block])
            T.copy(Y[bx * block], x)

    return kernel


def nothing(blocks: int) -> Any:
    """Next to nothing, in every block."""

    @T.program
    def kernel(X: T.Tensor((blocks,), "f32")):
        with T.Kernel(block=blocks, threads=128) as bx:
            x = T.alloc((1,), "f32")
            T.clear(x)
            T.copy(X[bx], x)

    return kernel


def reducing(count: int, steps: int) -> Any:
    """Return two devices that find the larger of their elements, again and again."""

    @T.program
    def kernel(X: T.Tensor((2, count), "f32")):
        with T.Kernel(device=2), T.Scale("device"):
            x = T.view(X, layout=T.FullRow)
            for _ in T.serial(steps):
                T.allreduce(x, op="max")

    return kernel


def moving(count: int) -> Any:
    """Return an array into another at once."""

    @T.program
    def kernel(X: T.Tensor((count,), "f32"), Y: T.Tensor((count,), "f32")):
        with T.Kernel(device=1), T.Scale("device"):
            T.copy(Y[0:count], X[0:count])

    return kernel
