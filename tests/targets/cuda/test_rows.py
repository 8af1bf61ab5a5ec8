"""Copies of rows: as many bytes at once as addresses allow, and nothing beyond edges."""

import re

import ml_dtypes
import numpy as np
import pytest
from tests.targets.cuda.test_compile import gemm

import megatile as mt
import megatile.language as T

TYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8, "i32": np.int32}


def made(kernel) -> str:
    return kernel.source[kernel.source.index("\nKERNEL") :]


@pytest.mark.parametrize(
    ("columns", "dtype", "words"),
    [
        (64, "f16", {"cp_async16", "copy_row<16>"}),
        (36, "f16", {"cp_async8", "copy_row<8>"}),
        (34, "f16", {"cp_async4", "copy_row<4>"}),
        (33, "f16", set()),
        (40, "i8", {"cp_async8", "copy_row<8>"}),
        (33, "f32", {"cp_async4"}),
    ],
)
def test_rows_are_moved_in_and_out(columns: int, dtype: str, words: set[str]) -> None:
    rows, tile = 21, 16

    @T.program
    def moved(A: T.Tensor((rows, columns), dtype), B: T.Tensor((rows, columns), dtype)):
        with T.Kernel(block=(T.ceildiv(columns, tile), T.ceildiv(rows, tile)), threads=64) as (bx, by):
            a = T.alloc((tile, tile), dtype, level="l1")
            T.copy(a, A[by * tile, bx * tile])
            T.copy(B[by * tile, bx * tile], a)

    k = mt.compile(moved, target="cuda")
    assert set(re.findall(r"cp_async\d+|(?:copy|store)_row<\d+>", made(k))) == words
    a = np.random.default_rng(0).integers(-9, 9, (rows, columns)).astype(TYPES[dtype])
    b = np.zeros_like(a)
    k(a, b)
    np.testing.assert_array_equal(b, a)


def test_the_last_part_of_a_row_may_be_shorter() -> None:
    n, tile = 101, 32

    @T.program
    def moved(A: T.Tensor((n,), "f32"), B: T.Tensor((n,), "f32"), S: T.Tensor((4,), "f32")):
        with T.Kernel(block=4, threads=64) as bx:
            a = T.alloc((tile,), "f32", level="l1")
            b = T.alloc((tile,), "f32", level="l1")
            s = T.alloc((1,), "f32", level="l1")
            T.copy(a, A[bx * tile])
            T.copy(b, a)
            T.copy(B[bx * tile], b)
            T.reduce_sum(b, s, dim=0)
            T.copy(S[bx], s)

    k = mt.compile(moved, target="cuda")
    assert {"cp_async16(", "copy_row<16>(", "store_row<16>("} <= set(re.findall(r"\w+(?:<16>)?\(", made(k)))
    a, b, s = np.arange(n, dtype="f4"), np.full(n + 3, -1, "f4"), np.zeros(4, "f4")
    for first in (0, 1):  # 1: not at a multiple of 16 bytes
        k(a, b[first : first + n], s)
        np.testing.assert_array_equal(b[first : first + n], a)
        assert (b[first + n :] == -1).all(), "nothing is written beyond the end"
    np.testing.assert_array_equal(s, [a[i : i + tile].sum() for i in range(0, n, tile)])


@pytest.mark.parametrize(
    ("N", "dtype", "out", "word"),
    [
        (72, "f16", "f16", "exchange_quads"),
        (68, "f16", "f32", "exchange_pairs"),
        (70, "bf16", "bf16", "store_words<4>"),
        (50, "f16", "f32", "store_words<8>"),
        (35, "f16", "f16", "st1_f16"),
        (68, "i8", "i32", "exchange_pairs"),
    ],
)
def test_accumulators_are_stored_by_rows(N: int, dtype: str, out: str, word: str) -> None:
    M, K, rng = 70, 32, np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(TYPES[dtype]) for s in ((M, K), (K, N)))
    total = "i32" if out == "i32" else "f32"

    @T.program
    def product(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(block=(T.ceildiv(N, 32), T.ceildiv(M, 32)), threads=64) as (bx, by):
            x = T.alloc((32, K), dtype, level="l1")
            y = T.alloc((K, 32), dtype, level="l1")
            c = T.alloc((32, 32), total)
            T.copy(x, A[by * 32, 0])
            T.copy(y, B[0, bx * 32])
            T.gemm(x, y, c, clear_accum=True)
            T.copy(C[by * 32, bx * 32], c)

    k, c = mt.compile(product, target="cuda"), np.zeros((M, N), TYPES[out])
    assert word in made(k)
    k(a, b, c)
    np.testing.assert_array_equal(c.astype("f8"), a.astype("f8") @ b.astype("f8"))


def test_copies_in_the_background_are_waited_for_before_a_loop_goes_on() -> None:
    n, tile = 8, 32

    @T.program
    def program(A: T.Tensor((n, tile), "f32"), L: T.Tensor((1,), "i32"), S: T.Tensor((n, tile), "f32")):
        with T.Kernel(block=1, threads=32):
            a = T.alloc((tile,), "f32", level="l1")
            T.copy(a, A[n - 1, 0:tile])
            for k in T.serial(n):
                T.copy(S[k, 0:tile], a)
                T.copy(a, A[k, 0:tile])
                if k >= L[0]:
                    break
            T.copy(S[n - 1, 0:tile], a)

    a = np.random.default_rng(0).standard_normal((n, tile), dtype="f4")
    k, s = mt.compile(program, target="cuda"), np.zeros((n, tile), "f4")
    assert "cp_async16(" in made(k)
    k(a, np.array([3], "i4"), s)
    np.testing.assert_array_equal(s[1:4], a[:3])
    np.testing.assert_array_equal(s[n - 1], a[3])


def test_stages_of_a_pipeline_are_not_waited_for_by_other_copies() -> None:
    source = made(mt.compile(gemm(64, 64, 64, 32, 32, 32, "f16", stages=3), target="cuda"))
    assert "cp_async_wait<1>();" in source
    assert "cp_async_wait_all" not in source


@pytest.mark.parametrize(
    ("shape", "tile", "dtype", "held", "words"),
    [
        ((21, 128), (8, 64), "f32", "f32", {"load_words<16>", "store_words<16>", "store_words<16, false>"}),
        ((21, 100), (8, 64), "f16", "f32", {"load_words<8>", "store_words<8>", "store_words<8, false>"}),
        ((9, 128), (4, 128), "bf16", "bf16", {"load_words<16>", "store_words<16>", "store_words<16, false>"}),
        ((7, 65), (7, 64), "f16", "f16", {"store_words<8, false>"}),
        ((21, 96), (8, 96), "bf16", "bf16", {"load_words<8>", "store_words<8>", "store_words<8, false>"}),
    ],
)
def test_tiles_in_registers_are_loaded_and_stored_by_rows(shape, tile, dtype, held, words) -> None:
    (M, N), (bM, bN) = shape, tile

    @T.program
    def doubled(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=64) as (bx, by):
            a = T.alloc((bM, bN), held)
            s = T.alloc((bM, bN), dtype, level="l1")
            T.copy(a, A[by * bM, bx * bN])
            for i, j in T.Parallel(bM, bN):
                a[i, j] = a[i, j] * 2
            T.copy(s, a)
            T.copy(B[by * bM, bx * bN], a)
            T.copy(B[by * bM, bx * bN], s)

    k = mt.compile(doubled, target="cuda")
    assert set(re.findall(r"(?:load|store)_words<\d+(?:, false)?>", made(k))) == words
    a = np.random.default_rng(0).integers(-9, 9, shape).astype(TYPES[dtype])
    b = np.zeros_like(a)
    k(a, b)
    np.testing.assert_array_equal(b.astype("f8"), 2 * a.astype("f8"))


def test_elements_beside_a_tile_are_taken_by_neighbouring_threads() -> None:
    """Vectors are for copies: where a nest also takes a tensor along the row, lanes have neighbours."""

    @T.program
    def added(A: T.Tensor((8, 128), "f32"), W: T.Tensor((128,), "f32"), B: T.Tensor((8, 128), "f32")):
        with T.Kernel(block=1, threads=64):
            a = T.alloc((8, 128), "f32")
            T.copy(a, A)
            for i, j in T.Parallel(8, 128):
                a[i, j] = a[i, j] + W[j]
            T.copy(B, a)

    assert "vector=1" in made(mt.compile(added, target="cuda"))


def test_the_last_part_in_registers_may_be_shorter() -> None:
    n, tile = 301, 256

    @T.program
    def doubled(A: T.Tensor((n,), "i32"), B: T.Tensor((n,), "i32"), S: T.Tensor((2,), "i32")):
        with T.Kernel(block=2, threads=64) as bx:
            a = T.alloc((tile,), "i32")
            s = T.alloc((tile,), "i32", level="l1")
            t = T.alloc((1,), "i32", level="l1")
            T.copy(a, A[bx * tile])
            T.copy(s, a)
            T.reduce_sum(s, t, dim=0)
            T.copy(B[bx * tile], a)
            T.copy(S[bx], t)

    k = mt.compile(doubled, target="cuda")
    assert {"load_words<16>(", "store_words<16>("} <= set(re.findall(r"\w+<16>\(", made(k)))
    a, b, s = np.arange(n, dtype="i4"), np.full(n + 16, -1, "i4"), np.zeros(2, "i4")
    k(a, b[:n], s)
    np.testing.assert_array_equal(b[:n], a)
    assert (b[n:] == -1).all()
    assert s.tolist() == [a[:tile].sum(), a[tile:].sum()]


@pytest.mark.filterwarnings("ignore:.*is never read")
@pytest.mark.parametrize(
    ("first", "word"), [(0, "cp_async16"), (4, "cp_async8"), (2, "cp_async4"), (1, None), (-1, None)]
)
def test_loops_that_only_move_elements_of_rows_move_several_at_once(first: int, word: str | None) -> None:
    """Rows in another order; not where rows begin between, or where elements may lie outside."""

    @T.program
    def gathered(X: T.Tensor((20, 40), "f16"), Y: T.Tensor((16, 32), "f16")):
        with T.Kernel(block=1, threads=64):
            a = T.alloc((16, 32), "f16", level="l1")
            for i, j in T.Parallel(16, 32):
                a[i, j] = X[i * 7 % 20, T.max(j + first, 0) if first < 0 else j + first]
            T.copy(Y[0, 0], a)

    k = mt.compile(gathered, target="cuda")
    assert re.findall(r"cp_async\d+", made(k)) == ([word] if word else [])
    x = np.random.default_rng(0).random((20, 40)).astype(np.float16)
    y = np.zeros((16, 32), np.float16)
    k(x, y)
    columns = np.maximum(np.arange(32) + first, 0)
    np.testing.assert_array_equal(y, x[np.arange(16) * 7 % 20][:, columns])


@pytest.mark.parametrize("several", [True, False])
def test_rows_times_a_row_in_shared_memory_are_moved_at_once(several: bool) -> None:
    """A thread's neighbours of a row read neighbours of the shared one; those in global memory stay apart."""

    @T.program
    def scaled(X: T.Tensor((16, 96), "bf16"), W: T.Tensor((96,), "f32"), Y: T.Tensor((16, 96), "bf16")):
        with T.Kernel(block=1, threads=128):
            x = T.alloc((16, 96), "f32")
            w = T.alloc((96,), "f32", level="l1")
            T.copy(x, X)
            T.copy(w, W)
            for i, j in T.Parallel(16, 96):
                x[i, j] = x[i, j] * (w[j] if several else W[j])
            T.copy(Y, x)

    k = mt.compile(scaled, target="cuda")
    assert ("load_words<8>(" in made(k), "store_words<8>(" in made(k)) == (several, several)
    x, w = np.random.default_rng(0).random((16, 96)).astype(TYPES["bf16"]), np.arange(96, dtype=np.float32)
    y = np.zeros_like(x)
    k(x, w, y)
    np.testing.assert_array_equal(y, (x.astype(np.float32) * w).astype(y.dtype))
