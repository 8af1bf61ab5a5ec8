"""``language/tile/operations.py``: tile operations."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.language.tile.shared import f32, zeros

import megatile as mt
import megatile.language as T


@pytest.mark.parametrize("op", ["sum", "max", "min", "absmax", "abssum"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("clear", [True, False])
def test_reductions(op: str, dim: int, clear: bool) -> None:
    reduce = getattr(T, f"reduce_{op}")

    @T.program
    def p(X: T.Tensor((6, 4), "f32"), Y: T.Tensor((4 if dim == 0 else 6,), "f32")):
        with T.Kernel(block=1):
            x, y = T.alloc(X.shape, "f32"), T.alloc(Y.shape, "f32")
            T.copy(x, X)
            T.copy(y, Y)
            reduce(x, y, dim=dim, clear=clear)
            T.copy(Y, y)

    x, y = f32(6, 4), np.full(4 if dim == 0 else 6, 0.3, np.float32)
    before = y.copy()
    mt.run(p, x, y)
    data = np.abs(x) if op.startswith("abs") else x
    name = op.removeprefix("abs")
    expected = getattr(data, name)(axis=dim)
    if not clear:
        expected = {"sum": np.add, "max": np.maximum, "min": np.minimum}[name](expected, before)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


NARROW = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "i8": np.int8,
    "u8": np.uint8,
    "bool": np.bool_,
}


@pytest.mark.parametrize(("dtype", "numpy_type"), NARROW.items())
def test_copy_converts(dtype: str, numpy_type: Any) -> None:
    @T.program
    def p(X: T.Tensor((16,), "f32"), Y: T.Tensor((16,), numpy_type)):
        with T.Kernel(block=1):
            x = T.alloc((16,), "f32")
            T.copy(x, X)
            T.copy(Y, x)

    x = np.abs(f32(16)) * 3
    y = np.zeros(16, numpy_type)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(numpy_type).astype(np.float32))


def test_gemm_forms() -> None:
    @T.program
    def p(
        A: T.Tensor((4, 6), "i8"), B: T.Tensor((6, 5), "i8"), C: T.Tensor((4, 5), "i32"),
        D: T.Tensor((6, 4), "f16"), E: T.Tensor((5, 6), "f16"), F: T.Tensor((4, 5), "f16"),
    ):  # fmt: skip
        with T.Kernel(block=1):
            c = T.alloc((4, 5), "i32")
            T.gemm(A, B, c, clear_accum=True)
            T.copy(C, c)
            f = T.alloc((4, 5), "f16")
            T.fill(f, 1.0)
            T.gemm(D, E, f, transpose_A=True, transpose_B=True, policy="FullRow")
            T.copy(F, f)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-100, 100, (4, 6)).astype(np.int8), rng.integers(-100, 100, (6, 5)).astype(np.int8)
    d, e = rng.standard_normal((6, 4)).astype(np.float16), rng.standard_normal((5, 6)).astype(np.float16)
    c, f = zeros(4, 5, dtype=np.int32), zeros(4, 5, dtype=np.float16)
    mt.run(p, a, b, c, d, e, f)
    np.testing.assert_array_equal(c, a.astype(np.int32) @ b.astype(np.int32))
    np.testing.assert_array_equal(f, (d.T.astype(np.float32) @ e.T.astype(np.float32) + 1).astype(np.float16))


@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum(reverse: bool) -> None:
    @T.program
    def p(X: T.Tensor((3, 5), "f32")):
        with T.Kernel(block=1):
            x = T.alloc((3, 5), "f32")
            T.copy(x, X)
            T.cumsum(x, dim=1, reverse=reverse)
            T.copy(X, x)

    x = f32(3, 5)
    expected = np.cumsum(x[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(x, axis=1)
    mt.run(p, x)
    np.testing.assert_allclose(x, expected, rtol=1e-6)


def test_print_breakpoint_and_record() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=4) as b:
            x = T.alloc((1,), "f32")
            T.fill(x, b * 2)
            T.print("value", x[0], "of", b)
            T.breakpoint(unit=2)
            T.copy(X[b], x)

    lines: list[str] = []
    stops: list[Any] = []
    x = zeros(4)

    def stop(unit: Any) -> None:
        stops.append((unit.rank, unit["x"].tolist(), unit.unit))

    result = mt.run(p, x, record=True, output=lines.append, on_breakpoint=stop)
    assert sorted(lines) == [f"[block {b}] value {2.0 * b} of {b}" for b in range(4)]
    assert stops == [(2, [4.0], "block 2")]
    write = result.last_write("X", 3)
    assert write is not None
    assert write.unit == "block 3"
    assert write.statement.startswith("copy(X[")
    assert write.place is not None and "T.copy(X[b], x)" in (write.place.snippet or "")
    assert write.step > 0
    assert "block 3, step" in str(write)


@pytest.mark.parametrize("dtype", ["f32", "i32", "f64"])
@pytest.mark.parametrize("dim", [0, 1])
def test_products_of_rows_and_columns(dtype: str, dim: int) -> None:
    @T.program
    def product(A: T.Tensor((5, 6), dtype), B: T.Tensor((6 if dim == 0 else 5,), dtype)):
        with T.Kernel(block=1, threads=32):
            t, r = T.alloc_shared((5, 6), dtype), T.alloc_fragment((6 if dim == 0 else 5,), dtype)
            T.copy(t, A)
            T.reduce_prod(t, r, dim=dim)
            T.copy(B, r)

    element = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[dtype]
    a = np.random.default_rng(1).integers(-3, 4, (5, 6)).astype(element)
    for how in (mt.run, mt.compile(product, target="cpu")):
        b = np.zeros(6 if dim == 0 else 5, element)
        how(product, a, b) if how is mt.run else how(a, b)
        np.testing.assert_array_equal(b, np.prod(a, dim))
