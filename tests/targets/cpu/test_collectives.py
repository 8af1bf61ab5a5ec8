"""Collectives of compiled programs give what the interpreter gives, in every dtype and dimension."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.dtypes import numpy_dtype

DTYPES = "f64 f32 f16 bf16 f8e4m3 f8e5m2 i64 u64 i32 u32 i16 u16 i8 u8".split()  # noqa: SIM905


def reducing(units: int, length: int, dtype: str, op: str) -> Any:
    @T.program
    def kernel(A: T.Tensor((units, length), dtype), C: T.Tensor((length,), dtype)):
        with T.Kernel(device=units), T.Scale("device"):
            mine, total = T.view(A, layout=T.Shard(0)), T.view(C, layout=T.Replica)
            T.copy(total[0:length], mine[0, 0:length])
            T.allreduce(total, op=op)

    return kernel


def moving(units: int, rows: int, dtype: str, dim: int) -> Any:
    """Everything else, on tiles with a border, so that rows do not lie behind each other."""
    wide = (units * rows, rows) if dim == 0 else (rows, units * rows)

    @T.program
    def kernel(
        A: T.Tensor((units, *wide), dtype),
        S: T.Tensor((units, rows, rows), dtype),
        G: T.Tensor((units, *wide), dtype),
        X: T.Tensor((units, *wide), dtype),
        B: T.Tensor((units, *wide), dtype),
    ):
        with T.Kernel(device=units), T.Scale("device") as (r, n):
            whole = T.alloc((wide[0] + 2, wide[1] + 3), dtype, level="l2")
            own = T.alloc((rows + 1, rows + 1), dtype, level="l2")
            other = T.alloc(wide, dtype, level="l2")
            T.copy(whole[1 : wide[0] + 1, 2 : wide[1] + 2], A[r, 0 : wide[0], 0 : wide[1]])
            T.reduce_scatter(
                own[1 : rows + 1, 0:rows], whole[1 : wide[0] + 1, 2 : wide[1] + 2], op="max", dim=dim
            )
            T.copy(S[r, 0:rows, 0:rows], own[1 : rows + 1, 0:rows])
            T.allgather(other, own[1 : rows + 1, 0:rows])
            T.copy(G[r, 0 : wide[0], 0 : wide[1]], other)
            T.all_to_all(other, whole[1 : wide[0] + 1, 2 : wide[1] + 2], dim=dim)
            T.copy(X[r, 0 : wide[0], 0 : wide[1]], other)
            T.broadcast(other, root=n - 1)
            T.copy(B[r, 0 : wide[0], 0 : wide[1]], other)

    return kernel


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    low = 0 if dtype[0] == "u" else -8
    return np.random.default_rng(0).integers(low, 8, shape).astype(numpy_dtype(dtype))


def equal_to_the_interpreter(program: Any, arrays: list[np.ndarray], threads: int) -> None:
    expected = [a.copy() for a in arrays]
    mt.run(program, *expected, machine="dgx-h100")
    mt.compile(program, machine="dgx-h100", threads=threads)(*arrays)
    for got, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(dtype: str) -> None:
    for number, op in enumerate(("sum", "max", "min")):
        length = (1, 300, 4100)[number]
        arrays = [numbers((3, length), dtype), np.zeros(length, numpy_dtype(dtype))]
        equal_to_the_interpreter(reducing(3, length, dtype, op), arrays, 1 + number % 2)


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f8e4m3", "i32", "u8"])
@pytest.mark.parametrize("dim", [0, 1])
def test_pieces(dtype: str, dim: int) -> None:
    units, rows = 3, 5
    wide = (units, units * rows, rows) if dim == 0 else (units, rows, units * rows)
    arrays = [
        numbers(wide, dtype),
        *(np.zeros(s, numpy_dtype(dtype)) for s in ((units, rows, rows), *[wide] * 3)),
    ]
    equal_to_the_interpreter(moving(units, rows, dtype, dim), arrays, 2)


def test_what_is_not_a_number_stays() -> None:
    for op in ("max", "min", "sum"):
        a = np.ones((3, 40), np.float32)
        a[0, 3] = a[1, 20] = a[2, 39] = np.nan
        equal_to_the_interpreter(reducing(3, 40, "f32", op), [a, np.zeros(40, np.float32)], 1)


def test_large_unsigned_numbers_are_larger():
    @T.program
    def largest(X: T.Tensor((2, 8), "u64"), Y: T.Tensor((2, 8), "u64")):
        with T.Kernel(device=2, block=1, threads=32), T.Scale("device"):
            x = T.view(X, layout=T.FullRow)
            y = T.view(Y, layout=T.FullRow)
            t = T.alloc((1, 8), "u64", level="l2")
            T.copy(t, x)
            T.allreduce(t, op="max")
            T.copy(y, t)

    x = np.array([[2**63 + 5] * 8, [7] * 8], dtype=np.uint64)
    interpreted, compiled = np.zeros_like(x), np.zeros_like(x)
    mt.run(largest, x, interpreted, machine="dgx-h100")
    mt.compile(largest, machine="dgx-h100")(x, compiled)
    assert (interpreted == 2**63 + 5).all()
    assert (compiled == 2**63 + 5).all()
    assert (mt.execute(largest, x, np.zeros_like(x), machine="dgx-h100")["Y"] == 2**63 + 5).all()
