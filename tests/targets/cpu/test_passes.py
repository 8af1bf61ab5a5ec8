"""What is changed before C is written keeps its meaning: compared with the interpreter, edges included."""

import numpy as np
import pytest
from tests.targets.cpu.passes_cases import check, random, softmax

import megatile.language as T
from megatile.ir.passes.resolve_views import without_views
from megatile.targets.cpu.passes import without_copies


@pytest.mark.parametrize("size", [(8, 64, 4), (8, 37, 2), (10, 33, 4), (1, 5, 1)])
def test_softmax_reads_and_writes_tensors_where_they_lie(size) -> None:
    M, N, bM = size
    source = check(softmax(M, N, bM), random(M, N), np.zeros((M, N), np.float32)).source
    assert ("st_f32(x_v" in source or "stn_f32(x_v" in source) and "exp" in source
    if M % bM == 0:
        assert source.count("X + ") >= 2, "X is read by the reduction and by the loop"


def test_more_blocks_than_rows() -> None:
    check(softmax(8, 32, 4, blocks=5), random(8, 32), np.zeros((8, 32), np.float32))


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


@pytest.mark.parametrize(("depth", "columns"), [(50, 80)])
def test_operands_over_the_edge_are_not_read_where_they_lie(depth: int, columns: int) -> None:
    """Tiles of 32 rows of 64 columns: the last rows, or the last columns, are no whole tile."""

    @T.program
    def kernel(
        A: T.Tensor((64, depth), "f32"),
        B: T.Tensor((depth, columns), "f32"),
        C: T.Tensor((64, columns), "f32"),
    ):
        with T.Kernel(block=T.ceildiv(columns, 64), threads=128) as bx:
            a = T.alloc((64, 32), "f32", level="l1")
            b = T.alloc((32, 64), "f32", level="l1")
            c = T.alloc((64, 64), "f32")
            T.clear(c)
            for k in T.serial(T.ceildiv(depth, 32)):
                T.copy(a, A[0, k * 32])
                T.copy(b, B[k * 32, bx * 64])
                T.gemm(a, b, c)
            T.copy(C[0, bx * 64], c)

    a, b = random(64, depth), random(depth, columns)
    check(kernel, a, b, np.zeros((64, columns), np.float32), rtol=1e-4)


def part_of_a_tensor(K: int, N: int, first: int = 0):
    @T.program
    def kernel(A: T.Tensor((32, 16), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((32, 32), "f32")):
        with T.Kernel(block=1):
            a, c = T.alloc((32, 16), "f32"), T.alloc((32, 32), "f32")
            b = T.alloc((16, 32), "f32")
            T.clear(c)
            T.copy(a, A)
            for k in T.serial(T.ceildiv(K, 16)):
                T.copy(b, B[k * 16 + first, 0])
                T.gemm(a, b, c)
            T.copy(C[0, 0], c)

    return kernel


@pytest.mark.parametrize(
    ("size", "stands_for_it"),
    [((64, 32), True), ((64, 48), False), ((64, 24), False), ((60, 32), False), ((64, 32, 8), False)],
)
def test_parts_of_tensors_stand_for_tiles_where_rows_follow_each_other_and_exist(size, stands_for_it) -> None:
    """Wider and narrower tensors, rows over the edge, steps that are not those of the tile."""
    program = without_views(part_of_a_tensor(*size).build("cpu"))
    assert (without_copies(program) != program) == stands_for_it
