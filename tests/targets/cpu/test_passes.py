"""What is changed before C is written keeps its meaning: compared with the interpreter, edges included."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def check(program, *arrays, rtol=1e-5, threads=2, machine="cpu"):
    wanted, got = [a.copy() for a in arrays], [a.copy() for a in arrays]
    mt.run(program, *wanted, machine=machine)
    kernel = mt.compile(program, threads=threads, machine=machine)
    kernel(*got)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=rtol, atol=rtol)
    return kernel


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(M, N, bM, blocks=None):
    @T.program
    def kernel(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32")):
        with T.Kernel(block=blocks or T.ceildiv(M, bM)) as bx:
            x = T.alloc((bM, N), "f32")
            top = T.alloc((bM,), "f32")
            total = T.alloc((bM,), "f32")
            T.copy(x, X[bx * bM, 0])
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = x[i, j] * (1.0 / total[i])
            T.copy(Y[bx * bM, 0], x)

    return kernel


@pytest.mark.parametrize("size", [(8, 64, 4), (8, 37, 2), (10, 33, 4), (1, 5, 1)])
def test_softmax_reads_and_writes_tensors_where_they_lie(size) -> None:
    M, N, bM = size
    source = check(softmax(M, N, bM), random(M, N), np.zeros((M, N), np.float32)).source
    assert ("st_f32(x_v" in source or "stn_f32(x_v" in source) and "exp" in source
    if M % bM == 0:
        assert source.count("X + ") >= 2, "X is read by the reduction and by the loop"


def test_more_blocks_than_rows() -> None:
    check(softmax(8, 32, 4, blocks=5), random(8, 32), np.zeros((8, 32), np.float32))


def test_a_tile_that_is_read_later_is_kept() -> None:
    @T.program
    def kernel(X: T.Tensor((8, 32), "bf16"), Y: T.Tensor((8, 32), "f32"), Z: T.Tensor((8, 32), "f32")):
        with T.Kernel(block=2) as bx:
            x = T.alloc((4, 32), "f32")
            y = T.alloc((4, 32), "f32")
            T.copy(x, X[bx * 4, 0])
            for i, j in T.Parallel(4, 32):
                y[i, j] = x[i, j] + 1.0
            T.copy(Y[bx * 4, 0], y)
            for i, j in T.Parallel(4, 32):
                x[i, j] = x[i, j] * y[i, j]
            T.copy(Z[bx * 4, 0], x)

    import ml_dtypes

    x = random(8, 32).astype(ml_dtypes.bfloat16)
    check(kernel, x, np.zeros((8, 32), np.float32), np.zeros((8, 32), np.float32))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(96, 32, 32, 32), (100, 40, 32, 48), (64, 16, 64, 16)])
def test_attention(causal, size) -> None:
    """Scores by columns, queries turned before the loop, keys and values read where they lie."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[3] / "examples" / "27_flash_attention.py"
    spec = importlib.util.spec_from_file_location("flash", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    S, D, bM, bN = size
    q, k, v = (random(1, 2, S, D, seed=s) for s in range(3))
    program = module.flash_attention(1, 2, 2, S, D, causal, bM=bM, bN=bN)
    source = check(program, q, k, v, np.zeros_like(q), np.zeros((1, 2, S), np.float32), rtol=1e-4).source
    assert "once_0" in source


def test_products_of_many_shapes() -> None:
    """Loops of products as one: leading dimensions, results used before they are stored, odd edges."""

    def batched(B, M, N, K, bM, bN, bK, act):
        @T.program
        def kernel(
            A: T.Tensor((B, M, K), "f32"), W: T.Tensor((B, K, N), "f32"), C: T.Tensor((B, M, N), "f32")
        ):
            with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM), B)) as (bx, by, bz):
                a = T.alloc((bM, bK), "f32")
                b = T.alloc((bK, bN), "f32")
                c = T.alloc((bM, bN), "f32")
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                    T.copy(a, A[bz, by * bM, k * bK])
                    T.copy(b, W[bz, k * bK, bx * bN])
                    T.gemm(a, b, c)
                if act:
                    for i, j in T.Parallel(bM, bN):
                        c[i, j] = T.tanh(c[i, j])
                T.copy(C[bz, by * bM, bx * bN], c)

        return kernel

    for B, M, N, K, bM, bN, bK, act in [
        (1, 64, 64, 64, 32, 32, 16, False),
        (2, 50, 70, 33, 32, 64, 16, True),
        (2, 45, 33, 20, 16, 32, 8, False),
    ]:
        args = random(B, M, K), random(B, K, N, seed=1), np.zeros((B, M, N), np.float32)
        source = check(batched(B, M, N, K, bM, bN, bK, act), *args, rtol=1e-4).source
        assert "pack_W" in source


def test_a_product_whose_tile_is_used_elsewhere_is_left_alone() -> None:
    @T.program
    def kernel(A: T.Tensor((32, 64), "f32"), B: T.Tensor((64, 32), "f32"), C: T.Tensor((32, 32), "f32"),
               D: T.Tensor((32, 16), "f32")):  # fmt: skip
        with T.Kernel(block=1):
            a = T.alloc((32, 16), "f32")
            b = T.alloc((16, 32), "f32")
            c = T.alloc((32, 32), "f32")
            T.clear(c)
            for k in T.serial(4):
                T.copy(a, A[0, k * 16])
                T.copy(b, B[k * 16, 0])
                T.gemm(a, b, c)
            T.copy(C[0, 0], c)
            T.copy(D[0, 0], a)

    args = random(32, 64), random(64, 32), np.zeros((32, 32), np.float32), np.zeros((32, 16), np.float32)
    assert "pack_B" not in check(kernel, *args).source


def test_a_tile_that_changes_inside_the_loop_is_turned_in_every_step() -> None:
    @T.program
    def kernel(A: T.Tensor((4, 16, 32), "f32"), B: T.Tensor((32, 32), "f32"), C: T.Tensor((16, 32), "f32")):
        with T.Kernel(block=1):
            a = T.alloc((16, 32), "f32")
            b = T.alloc((32, 32), "f32")
            s = T.alloc((16, 32), "f32")
            c = T.alloc((16, 32), "f32")
            T.copy(b, B[0, 0])
            T.clear(c)
            for k in T.serial(4):
                T.copy(a, A[k, 0:16, 0:32])
                T.gemm(a, b, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(16, 32):
                    c[i, j] += s[i, j]
                for i, j in T.Parallel(32, 32):
                    b[i, j] = b[i, j] * 0.5

            T.copy(C[0, 0], c)

    check(kernel, random(4, 16, 32), random(32, 32), np.zeros((16, 32), np.float32), rtol=1e-4)


def test_reductions_of_loops_over_rows_and_columns() -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), R: T.Tensor((24,), "f32"), C: T.Tensor((40,), "f32"), Y: T.Tensor((24, 40), "f32")):  # fmt: skip # noqa: E501
        with T.Kernel(block=1):
            x = T.alloc((24, 40), "f32")
            r = T.alloc((24,), "f32")
            c = T.alloc((40,), "f32")
            before = T.alloc((24,), "f32")
            T.copy(x, X[0, 0])
            T.fill(r, 0.5)
            for i, j in T.Parallel(24, 40):
                x[i, j] = x[i, j] * 2.0 - 0.25
            T.copy(before, r)
            T.reduce_max(x, r, dim=1, clear=False)
            for i, j in T.Parallel(24, 40):
                x[i, j] = T.tanh(x[i, j] - before[i])
            T.reduce_absmax(x, c, dim=0)
            T.copy(R[0], r)
            T.copy(C[0], c)
            T.copy(Y[0, 0], x)

    check(
        kernel,
        random(24, 40),
        np.zeros(24, np.float32),
        np.zeros(40, np.float32),
        np.zeros((24, 40), np.float32),
    )


def test_nan_and_infinity_pass_through_reductions() -> None:
    x = random(8, 64)
    x[1, 5], x[2, 63], x[3, 0], x[4] = np.nan, np.inf, -np.inf, -np.inf
    y = np.zeros((8, 64), np.float32)
    check(softmax(8, 64, 4), x, y)


def test_threads_in_step_read_before_any_writes() -> None:
    """Statements that all threads of a block do together, each before the next."""
    from dataclasses import replace

    from megatile.core.expr import Const, Symbol, applied
    from megatile.ir import nodes as n
    from megatile.ir.expr import Load

    @T.program
    def kernel(A: T.Tensor((32,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(32):
                A[i] = A[i] + 1.0

    program = kernel.build("cpu")
    i = Symbol("i")
    other = Load("A", (applied("^", (i, Const(1))),), "f32")
    value = applied("+", (Load("A", (i,), "f32"), other), "f32")
    store = n.Store("A", (i,), value)
    small = applied("<", (i, Const(20)), "bool")
    turned = n.Store("A", (applied("-", (Const(31), i)),), applied("*", (Symbol("x", "f32"), other), "f32"))
    steps = (n.Let("x", value), n.If(small, (turned,), (store,)))
    inner = n.Loop("serial", "k", Const(0), Const(3), body=steps)
    nest = n.Parallel(("i",), (Const(32),), (store, inner, store), in_step=True)
    region = replace(program.body[0], body=(nest,))
    check(replace(program, body=(region,)), random(32), threads=1)


@pytest.mark.parametrize("why", ["copies the tile", "changes what is read", "reads the result", ""])
def test_a_loop_and_its_reduction_are_one_only_where_nothing_minds(why: str) -> None:
    @T.program
    def kernel(X: T.Tensor((24, 40), "f32"), R: T.Tensor((24,), "f32"), Y: T.Tensor((24, 40), "f32")):
        with T.Kernel(block=1):
            x, y = T.alloc((24, 40), "f32"), T.alloc((24, 40), "f32")
            r, s = T.alloc((24,), "f32"), T.alloc((24,), "f32")
            T.copy(x, X[0, 0])
            T.fill(s, 0.5)
            T.fill(r, 0.25)
            T.clear(y)
            if why == "reads the result":
                for i, j in T.Parallel(24, 40):
                    x[i, j] = x[i, j] * 2.0 - r[i]
            else:
                for i, j in T.Parallel(24, 40):
                    x[i, j] = x[i, j] * 2.0 - s[i]
            if why == "copies the tile":
                T.copy(y, x)
            elif why == "changes what is read":
                T.fill(s, 3.0)
            T.reduce_sum(x, r, dim=1)
            for i, j in T.Parallel(24, 40):
                y[i, j] = y[i, j] + x[i, j] * s[i]
            T.copy(R[0], r)
            T.copy(Y[0, 0], y)

    check(kernel, random(24, 40), np.zeros(24, np.float32), np.zeros((24, 40), np.float32), rtol=1e-4)


@pytest.mark.parametrize("columns", [24, 64])
@pytest.mark.parametrize("changes", [False, True])
def test_operands_that_stay_the_same_are_turned_once(columns: int, changes: bool) -> None:
    """Panels where the columns fill them; and again where the loop changes the operand."""

    @T.program
    def kernel(
        A: T.Tensor((48, 32), "f32"), B: T.Tensor((columns, 32), "f32"), C: T.Tensor((48, columns), "f32")
    ):
        with T.Kernel(block=1):
            a, b = T.alloc((16, 32), "f32"), T.alloc((columns, 32), "f32")
            c = T.alloc((16, columns), "f32")
            T.copy(b, B[0, 0])
            for k in T.serial(3):
                T.copy(a, A[k * 16, 0])
                T.clear(c)
                T.gemm(a, b, c, transpose_B=True)
                T.copy(C[k * 16, 0], c)
                if changes:
                    for i, j in T.Parallel(columns, 32):
                        b[i, j] = b[i, j] * 0.5

    check(kernel, random(48, 32), random(columns, 32, seed=1), np.zeros((48, columns), np.float32), rtol=1e-4)
