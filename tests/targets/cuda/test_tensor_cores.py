"""Products on tensor cores: how warps share a tile, and that rows of factors do not meet in banks."""

import ctypes

import ml_dtypes
import numpy as np
import pytest
from tests.targets.cuda.test_compile import gemm

import megatile as mt
import megatile.language as T
from megatile.core.expr import Symbol, binary
from megatile.lowering.banks import fetch_turns
from megatile.targets.cuda.conditions import narrowed
from megatile.targets.cuda.kernel import emulated
from megatile.targets.cuda.layouts import mma

WG = Symbol("@wg")


def bank_turns(kernel) -> dict[str, tuple[int, int]]:
    """By ldmatrix and by cp.async: accesses of 8 lanes with 16 bytes each, and turns in the banks."""
    found = emulated(kernel.source).load().megatile_banks
    found.restype = ctypes.POINTER(ctypes.c_long)
    return {"ldmatrix": tuple(found()[0:2]), "cp.async": tuple(found()[2:4])}


@pytest.mark.parametrize(
    ("shape", "threads", "whole_rows", "wanted"),
    [
        ((128, 128), 128, False, (64, 64)),
        ((128, 256), 256, False, (64, 64)),
        ((64, 64), 128, False, (32, 32)),
        ((64, 128), 128, True, (16, 128)),
        ((16, 64), 128, False, (16, 16)),
        ((48, 40), 128, False, (16, 40)),
    ],
)
def test_warps_have_square_parts(shape, threads: int, whole_rows: bool, wanted: tuple[int, int]) -> None:
    found = mma(shape, threads, whole_rows)
    assert (found.down * 16, found.across * 8) == wanted


@pytest.mark.parametrize(
    ("tile", "turned"),
    [((64, 64, 16), (False, True)), ((64, 32, 32), (True, False)), ((32, 128, 64), (False, False)),
     ((32, 256, 128), (False, True)), ((32, 40, 16), (False, False))],
)  # fmt: skip
def test_rows_of_factors_do_not_meet_in_banks(tile: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    M, N, K = tile[0], tile[1], 2 * tile[2]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, s).astype(np.float16) for s in ((M, K), (K, N)))
    k, c = mt.compile(gemm(M, N, K, *tile, "f16", turned=turned), target="cuda"), np.zeros((M, N), np.float32)
    arguments = [np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True)]
    k(*arguments, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))
    for accesses, turns in bank_turns(k).values():
        assert turns == accesses > 0


@pytest.mark.parametrize("columns", [16, 32, 48, 64])
def test_turns_of_rows_in_order_are_those_that_the_simulator_counts(columns: int) -> None:
    @T.program
    def program(A: T.Tensor((16, columns), "f16"), C: T.Tensor((16, 16), "f32")):
        with T.Kernel(block=1, threads=32):
            a = T.alloc((16, columns), "f16", level="l1")
            c = T.alloc((16, 16), "f32")
            T.copy(a, A)
            T.atomic_add(a[0, 0], 0.0)  # the tile is not swizzled
            T.gemm(a, a, c, transpose_B=True, clear_accum=True)
            T.copy(C, c)

    k = mt.compile(program, target="cuda")
    k(np.ones((16, columns), np.float16), np.zeros((16, 16), np.float32))
    machine = mt.machine("hgx-a100")
    (fetch,) = [e.fetch for e in machine.engines if e.fetch]
    accesses, turns = bank_turns(k)["ldmatrix"]
    assert turns / accesses == fetch_turns(machine.memory("shared"), (16, columns), 2, fetch)


def test_a_swizzled_tile_is_read_and_written_by_elements() -> None:
    @T.program
    def program(A: T.Tensor((32, 64), "f16"), C: T.Tensor((32, 32), "f32"), S: T.Tensor((32,), "f32")):
        with T.Kernel(block=1, threads=64):
            a = T.alloc((32, 64), "f16", level="l1")
            c = T.alloc((32, 32), "f32")
            s = T.alloc((32,), "f32", level="l1")
            T.copy(a[0:16, 0:64], A[16:32, 0:64])
            T.copy(a[16:32, 1:64], A[0:16, 0:63])
            a[20, 0] = 3.0
            for i in T.Parallel(16):
                a[16 + i, 0] = a[i, 5] + 1.0
            T.reduce_sum(a, s, dim=1)
            T.gemm(a, a, c, transpose_B=True, clear_accum=True)
            T.copy(C, c)
            T.copy(S, s)

    k = mt.compile(program, target="cuda")
    assert "Swizzled<u16, 64> a" in k.source
    a = np.random.default_rng(0).integers(-3, 4, (32, 64)).astype(np.float16)
    results = []
    for run in (lambda *x: mt.run(program, *x, machine="hgx-a100"), k):
        results.append((np.zeros((32, 32), np.float32), np.zeros(32, np.float32)))
        run(a, *results[-1])
    for wanted, got in zip(*results, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_warp_groups_multiply_their_rows_of_a_slot() -> None:
    """``wg >= 1`` says that ``(wg - 1) * 64`` is inside the tile."""
    steps, slots, bK = 4, 2, 32

    @T.program
    def roles(A: T.Tensor((128, 128), "f16"), B: T.Tensor((128, 64), "f16"), C: T.Tensor((128, 64), "f16")):
        with T.Kernel(block=1, warpgroup=3):
            a = T.alloc((slots, 128, bK), "f16", level="l1")
            b = T.alloc((slots, bK, 64), "f16", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((64, 64), "f32")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots * 2)
                        T.copy(a[k % slots, 0:128, 0:bK], A[0, k * bK])
                        T.copy(b[k % slots, 0:bK, 0:64], B[k * bK, 0])
                        T.signal(full[k % slots], dst=1)
                        T.signal(full[k % slots], dst=2)
                if wg >= 1:
                    T.clear(c)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots, (wg - 1) * 64 : wg * 64, :], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[(wg - 1) * 64, 0], c)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((128, 128), (128, 64)))
    k, c = mt.compile(roles, target="cuda"), np.zeros((128, 64), np.float16)
    k(a, b, c)
    np.testing.assert_array_equal(c, a @ b)
    accesses, turns = bank_turns(k)["ldmatrix"]
    assert turns == accesses > 0


@pytest.mark.parametrize(
    ("condition", "holds", "wanted"),
    [
        (binary(">=", WG, 1), True, (1, 2)),
        (binary(">=", WG, 1), False, (0, 0)),
        (binary(">", 3 - WG, 1), True, (0, 1)),
        (binary("==", WG, 0), False, (1, 2)),
        (binary("==", WG, 1), False, (0, 2)),
        (binary(">=", 2 * WG, 2), True, None),
        (binary("and", binary(">", WG, 0), binary("<", WG, 2)), True, (1, 1)),
        (binary(">", WG, 5), True, None),
    ],
)
def test_conditions_narrow_coordinates(condition, holds: bool, wanted) -> None:
    found = narrowed(condition, {"@wg": (0, 2)}, holds)
    assert found == ({} if wanted is None else {"@wg": wanted})


def test_sums_are_factors_of_the_next_product_in_registers() -> None:
    """What the warps have of the first product is as the second wants it: no way through shared memory."""
    M, N, K, D = 64, 32, 32, 48

    @T.program
    def both(
        A: T.Tensor((M, K), "bf16"), B: T.Tensor((N, K), "bf16"), V: T.Tensor((N, D), "bf16"),
        C: T.Tensor((M, D), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=1, threads=64):
            a = T.alloc((M, K), "bf16", level="l1")
            b = T.alloc((N, K), "bf16", level="l1")
            v = T.alloc((N, D), "bf16", level="l1")
            s = T.alloc((M, N), "f32")
            p = T.alloc((M, N), "bf16")
            c = T.alloc((M, D), "f32")
            T.copy(a, A)
            T.copy(b, B)
            T.copy(v, V)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            T.copy(p, s)
            T.gemm(p, v, c, clear_accum=True)
            T.copy(C, c)

    k = mt.compile(both, target="cuda")
    assert "both_bf16(held[0], held[1])" in k.source
    assert "float p[" in k.source
    rng = np.random.default_rng(0)
    a, b, v = (rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((M, K), (N, K), (N, D)))
    c = np.zeros((M, D), np.float32)
    k(a, b, v, c)
    p = (a.astype("f4") @ b.astype("f4").T).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(c, p.astype("f4") @ v.astype("f4"))
