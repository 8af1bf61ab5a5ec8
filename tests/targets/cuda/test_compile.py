"""CUDA source: products of all kinds, odd shapes, reductions, failures, and what ``k`` says about itself."""

import re

import ml_dtypes
import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def gemm(M, N, K, bM, bN, bK, dtype, out="f32", threads=128, turned=(False, False), level="l0", stages=2):
    a_shape, b_shape = (bK, bM) if turned[0] else (bM, bK), (bN, bK) if turned[1] else (bK, bN)
    a_whole, b_whole = (K, M) if turned[0] else (M, K), (N, K) if turned[1] else (K, N)

    @T.program
    def product(A: T.Tensor(a_whole, dtype), B: T.Tensor(b_whole, dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=threads) as (bx, by):
            a = T.alloc(a_shape, dtype, level="l1")
            b = T.alloc(b_shape, dtype, level="l1")
            c = T.alloc((bM, bN), out, level=level)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                if turned[0]:
                    T.copy(a, A[k * bK, by * bM])
                else:
                    T.copy(a, A[by * bM, k * bK])
                if turned[1]:
                    T.copy(b, B[bx * bN, k * bK])
                else:
                    T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c, transpose_A=turned[0], transpose_B=turned[1])
            T.copy(C[by * bM, bx * bN], c)

    return product


NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i8": np.int8,
         "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "tile", "options"),
    [
        ((64, 64, 64), (64, 64, 32), {"dtype": "f16"}),
        ((70, 50, 45), (32, 16, 16), {"dtype": "bf16", "threads": 64, "turned": (True, True)}),
        ((48, 40, 32), (16, 40, 16), {"dtype": "f16", "threads": 128, "turned": (False, True)}),
        ((33, 17, 21), (32, 16, 16), {"dtype": "f16", "level": "l1", "out": "f16"}),
        ((20, 30, 25), (12, 10, 6), {"dtype": "f32", "threads": 96, "turned": (True, False)}),
        ((20, 30, 25), (12, 10, 6), {"dtype": "f64", "out": "f64", "threads": 32}),
        ((20, 30, 24), (16, 16, 8), {"dtype": "i8", "out": "i32", "threads": 64}),
        ((48, 40, 64), (32, 32, 32), {"dtype": "i8", "out": "i32", "turned": (False, True)}),
        ((33, 24, 64), (16, 24, 64), {"dtype": "f8e4m3", "turned": (True, False), "threads": 64}),
        ((64, 48, 128), (32, 16, 64), {"dtype": "f8e5m2", "turned": (False, True), "level": "l1"}),
        ((40, 72, 136), (32, 32, 16), {"dtype": "f16", "stages": 4}),
        ((40, 36, 37), (32, 32, 16), {"dtype": "f32", "stages": 3, "turned": (False, True)}),
        ((33, 7, 5), (16, 8, 16), {"dtype": "bf16", "stages": 5, "threads": 32}),
    ],
)
def test_products(shape, tile, options) -> None:
    M, N, K = shape
    turned = options.get("turned", (False, False))
    rng = np.random.default_rng(0)
    element = NUMPY[options["dtype"]]
    a, b = (rng.integers(-4, 5, s).astype(element) for s in ((M, K), (K, N)))
    out = {"f16": np.float16, "f64": np.float64, "i32": np.int32}.get(options.get("out", ""), np.float32)
    c = np.zeros((M, N), out)
    arguments = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True)]
    mt.compile(gemm(M, N, K, *tile, **options), target="cuda")(*arguments, c)
    np.testing.assert_array_equal(c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64))


def test_the_source_says_what_it_is() -> None:
    k = mt.compile(gemm(64, 64, 64, 64, 64, 32, "f16"), target="cuda")
    assert "Never run on a GPU" in k.source
    assert "CPU" in k.ran_on
    assert "mma_f16(sums, xs + mi * 4, ys)" in k.source
    assert "T.gemm(a, b, c" in k.source
    assert "LAUNCH(product_1, 1, 128, " in k.source


@pytest.mark.parametrize(
    ("K", "dtype", "word"),
    [(64, "f16", "cp_async16"), (66, "f16", "cp_async4"), (65, "f16", ""), (65, "f32", "cp_async4")],
)
def test_copies_ahead_are_as_wide_as_rows_allow(K: int, dtype: str, word: str) -> None:
    source = mt.compile(gemm(64, 64, K, 32, 32, 16, dtype, turned=(False, True)), target="cuda").source
    made = source[source.index("\nKERNEL") :]
    assert set(re.findall(r"cp_async\d+", made)) == ({word} if word else set())
    assert "auto fetch" in made


def test_a_pipelined_loop_may_end_early_and_begin_again() -> None:
    n, tile = 200, 16

    @T.program
    def sums(A: T.Tensor((4, n), "f32"), L: T.Tensor((4,), "i32"), S: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=32):
            a = T.alloc((1, tile), "f32", level="l1")
            s = T.alloc((1,), "f32", level="l1")
            for row in T.serial(4):
                T.clear(s)
                for k in T.Pipelined(T.ceildiv(n, tile), num_stages=3):
                    T.copy(a, A[row, k * tile])
                    if k >= L[row]:
                        break
                    T.reduce_sum(a, s, dim=1, clear=False)
                T.copy(S[row], s)

    a = np.random.default_rng(0).standard_normal((4, n)).astype(np.float32)
    lengths, s = np.array([0, 13, 1, 7], np.int32), np.empty(4, np.float32)
    k = mt.compile(sums, target="cuda")
    assert "fetch(" in k.source
    k(a, lengths, s)
    np.testing.assert_allclose(
        s, [a[i, : m * tile].sum() for i, m in enumerate(lengths)], rtol=1e-4, atol=1e-4
    )


OPS = ("sum", "max", "min", "abssum", "absmax")


@pytest.mark.parametrize("level", ["l0", "l1"])
def test_reductions(level: str) -> None:
    rows, columns = 37, 45

    @T.program
    def reduced(
        A: T.Tensor((rows, columns), "f32"), R: T.Tensor((5, rows), "f32"), C: T.Tensor((5, columns), "f32")
    ):
        with T.Kernel(block=1, threads=64):
            a = T.alloc((rows, columns), "f32", level=level)
            b = T.alloc((rows, columns), "f32", level="l1")
            r = T.alloc((rows,), "f32")
            c = T.alloc((columns,), "f32")
            T.copy(a, A)
            T.copy(b, a)
            for number, op in enumerate(OPS):
                getattr(T, f"reduce_{op}")(a, r, dim=1)
                getattr(T, f"reduce_{op}")(b, c, dim=0)
                T.copy(R[number, 0], r)
                T.copy(C[number, 0], c)

    a = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    r, c = np.empty((5, rows), np.float32), np.empty((5, columns), np.float32)
    mt.compile(reduced, target="cuda")(a, r, c)
    for number, op in enumerate(OPS):
        of = np.abs(a) if op.startswith("abs") else a
        function = getattr(np, op.removeprefix("abs"))
        np.testing.assert_allclose(r[number], function(of, axis=1), rtol=1e-4)
        np.testing.assert_allclose(c[number], function(of, axis=0), rtol=1e-4)


@pytest.mark.parametrize(("rows", "mask"), [(5, "lanes(16)"), (8, "~0u")])
def test_whole_warps_shuffle_where_all_their_groups_have_a_row(rows: int, mask: str) -> None:
    @T.program
    def sums(X: T.Tensor((rows, 16), "f32"), Y: T.Tensor((rows,), "f32")):
        with T.Kernel(block=1, threads=64):
            x = T.alloc((rows, 16), "f32", level="l1")
            y = T.alloc((rows,), "f32", level="l1")
            T.copy(x, X)
            T.reduce_sum(x, y, dim=1)
            T.copy(Y, y)

    kernel = mt.compile(sums, target="cuda")
    assert f"__shfl_xor_sync({mask}, acc, 8)" in kernel.source
    x, y = np.random.default_rng(0).random((rows, 16), np.float32), np.zeros(rows, np.float32)
    kernel(x, y)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-6)


def test_a_failure_names_its_line() -> None:
    @T.program
    def outside(A: T.Tensor((8,), "f32"), N: T.Tensor((1,), "i32")):
        with T.Kernel(block=1, threads=32):
            n = T.read_scalar(N[0])
            A[n] = 1.0

    a = np.zeros(8, np.float32)
    k = mt.compile(outside, target="cuda")
    k(a, np.array([3], np.int32))
    assert a.tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    with pytest.raises(mt.MegatileError, match="out of bounds") as raised:
        k(a, np.array([8], np.int32))
    assert raised.value.place.line > 1


def test_threads_that_wait_for_ever_are_a_deadlock() -> None:
    @T.program
    def stuck(A: T.Tensor((1,), "f32")):
        with T.Kernel(block=1, warpgroup=2), T.Scale("warpgroup") as (wg, _):
            flag = T.alloc((1,), "i32", level="l1")
            if wg == 0:
                T.wait(flag[0], 1)
            else:
                T.wait(flag[0], 1)
                T.signal(flag[0], dst=0)

    with pytest.raises(mt.MegatileError, match="deadlock"):
        mt.compile(stuck, target="cuda")(np.zeros(1, np.float32))


def test_too_much_shared_memory_names_the_tile() -> None:
    program = gemm(256, 256, 256, 256, 128, 256, "f32", level="l1", stages=1)
    with pytest.raises(mt.MegatileError, match="bytes of shared memory.* 'a'"):
        mt.compile(program, target="cuda", machine="cpu")


def test_threads_and_warps_have_tiles_of_their_own() -> None:
    @T.program
    def program(A: T.Tensor((4, 64), "f32"), W: T.Tensor((2,), "f32"), F: T.Tensor((64,), "i64")):
        with T.Kernel(block=1, threads=64):
            total = T.alloc((2,), "f32", level="l1")
            with T.Scale("thread") as (t, _):
                mine = T.alloc((4,), "f32")
                T.copy(mine, A[0:4, t])
                for i in T.serial(1, 4):
                    mine[i] = mine[i] + mine[i - 1]
                T.copy(A[0:4, t], mine)
                F[t] = T.cast(t, "i64") * 3000000000 - 1
            with T.Scale("warp") as (w, _):
                x = T.alloc((4, 32), "f32")
                T.copy(x, A[0, w * 32])
                part = T.alloc((4,), "f32", level="l1")
                T.reduce_sum(x, part, dim=1)
                total[w] = part[0] + part[1] + part[2] + part[3]
            T.copy(W, total)

    a = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    results = []
    for run in (lambda *x: mt.run(program, *x, machine="hgx-a100"), mt.compile(program, target="cuda")):
        results.append((a.copy(), np.zeros(2, np.float32), np.zeros(64, np.int64)))
        run(*results[-1])
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("f8e4m3", ml_dtypes.float8_e4m3fn), ("f8e5m2", ml_dtypes.float8_e5m2), ("f16", np.float16),
     ("i16", np.int16),
     ("f64", np.float64), ("u8", np.uint8), ("bf16", ml_dtypes.bfloat16)],
)  # fmt: skip
def test_every_dtype_is_converted_and_changed_atomically(dtype: str, element) -> None:
    n = 300

    @T.program
    def program(A: T.Tensor((n,), "f32"), B: T.Tensor((n,), dtype), S: T.Tensor((3,), dtype)):
        with T.Kernel(block=2, threads=64) as bx:
            a = T.alloc((n // 2,), dtype)
            T.copy(a, A[bx * (n // 2)])
            T.copy(B[bx * (n // 2)], a)
            for i in T.Parallel(n // 2):
                T.atomic_max(S[1], a[i])
                T.atomic_min(S[0], a[i])
            for i in T.Parallel(3):
                T.atomic_add(S[2], T.cast(i + 1, dtype))

    positive = dtype == "u8"
    a = (np.random.default_rng(0).standard_normal(n) * 30).astype(np.float32)
    a = np.abs(a) if positive else a
    results = []
    for run in (lambda *x: mt.run(program, *x, machine="hgx-a100"), mt.compile(program, target="cuda")):
        results.append((np.zeros(n, element), np.zeros(3, element)))
        run(a, *results[-1])
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


def test_extents_that_are_open_are_known_when_it_is_called() -> None:
    n = T.dynamic("n")

    @T.program
    def double(A: T.Tensor((n,), "f32")):
        with T.Kernel(block=T.ceildiv(n, 32), threads=32) as bx:
            a = T.alloc((32,), "f32")
            T.copy(a, A[bx * 32])
            for i in T.Parallel(32):
                a[i] = a[i] * 2
            T.copy(A[bx * 32], a)

    k = mt.compile(double, target="cuda")
    a = np.arange(70, dtype=np.float32)
    k(a)
    np.testing.assert_array_equal(a, 2 * np.arange(70))
    with pytest.raises(mt.MegatileError, match="times mean nothing"):
        k.profile(a)


def test_programs_of_devices_alone_are_refused() -> None:
    """Their units would be blocks of one GPU."""

    @T.program
    def moved(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.copy(T.view(Y, layout=T.FullRow), T.view(X, layout=T.FullRow))

    with pytest.raises(
        mt.MegatileError, match="runs on 4 units of scale 'device', and CUDA source is for one"
    ):
        mt.compile(moved, target="cuda")
