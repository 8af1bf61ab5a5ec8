"""Lowering: golden text, constant size, edges, random programs, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.language.tile.random_programs import random_program

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramWarning
from megatile.lowering.errors import LoweringError
from megatile.lowering.explain import figures
from megatile.plan import model as pm
from megatile.plan.execute import OrderWarning


def gemm(
    M: int, N: int, K: int, bM: int = 64, bN: int = 64, bK: int = 32, stages: int = 3, dtype: str = "f16"
):
    @T.program
    def kernel(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bM, bK), dtype, level="l1")
            b = T.alloc((bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def without_places(plan: mt.Plan) -> str:
    return "\n".join(line.split("  #")[0] for line in str(plan).splitlines())


GEMM = """\
plan("kernel", scale="device", grid=(1,))
block = level(scale="block", grid=(6,), parent="device", slots=6)
A = tile(f16, (128, 64), memory="hbm", role="inout")
B = tile(f16, (64, 192), memory="hbm", role="inout")
C = tile(f32, (128, 192), memory="hbm", role="inout")
a = tile(f16, (64, 32), memory="shared", versions=3, level="block")
b = tile(f16, (32, 64), memory="shared", versions=3, level="block")
c = tile(f32, (64, 64), memory="registers", level="block")
with units((0, 6, 1), level="block"):
    c <- fill(value=0, flops=4096)
    for k in range(0, 2, 1):
        a <- fresh.copy(A[unit // 3 * 64:+64, k * 32:+32], bytes=4096, dtype="f16")
        b <- fresh.copy(B[k * 32:+32, unit % 3 * 64:+64], bytes=4096, dtype="f16")
        c <- gemm_add(a, b, c, flops=262144, dtype="f16")
    C[unit // 3 * 64:+64, unit % 3 * 64:+64] <- copy(c, bytes=16384, by="lsu")"""


def test_a_product_in_full() -> None:
    assert without_places(mt.lower(gemm(128, 192, 64), machine="dgx-h100").plan).rstrip() == GEMM


def test_the_plan_does_not_grow_with_blocks_or_iterations() -> None:
    small = mt.lower(gemm(128, 192, 64), machine="dgx-h100").plan
    large = mt.lower(gemm(8192, 8192, 8192), machine="dgx-h100").plan
    assert len(str(large).splitlines()) == len(str(small).splitlines())
    assert large.instances("block") == 16384


@settings(max_examples=25, deadline=None)
@given(M=st.integers(1, 90), N=st.integers(1, 90), K=st.integers(1, 70), stages=st.integers(1, 4))
def test_edges_of_products(M: int, N: int, K: int, stages: int) -> None:
    rng = np.random.default_rng(M * N + K)
    a, b = rng.integers(-4, 5, (M, K)).astype("f2"), rng.integers(-4, 5, (K, N)).astype("f2")
    prog = gemm(M, N, K, 32, 16, 16, stages)
    got = mt.execute(prog, a, b, np.full((M, N), np.nan, "f4"), machine="dgx-h100")["C"]
    np.testing.assert_array_equal(got, a.astype("f4") @ b.astype("f4"))


@pytest.mark.parametrize("batch", range(8))
def test_random_programs_execute_as_they_are_interpreted(batch: int) -> None:
    for seed in range(batch * 12, batch * 12 + 12):
        case = random_program(seed)
        arrays = case.arrays()
        wanted = [a.copy() for a in arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (ProgramWarning))
            warnings.simplefilter("ignore", OrderWarning)
            mt.run(case.program, *wanted, checks=False, output=lambda text: None)
            lowered = mt.lower(case.program, *arrays, machine="dgx-h100")
            got = mt.execute(lowered, *arrays)
        for param, before, after in zip(lowered.program.params, arrays, wanted, strict=True):
            close = np.allclose(got.get(param.name, before), after, rtol=1e-3, atol=1e-4, equal_nan=True)
            assert close, f"seed {seed}: {param.name} after {case.steps}"


def test_variables_that_a_store_changes_keep_their_value() -> None:
    @T.program
    def swap(A: T.Tensor((16,), "f32"), B: T.Tensor((16,), "f32")):
        with T.Kernel(block=1, threads=16):
            a = T.alloc((16,), "f32")
            b = T.alloc((16,), "f32")
            T.copy(a, A[0])
            T.copy(b, B[0])
            for i in T.Parallel(16):
                t = a[i]
                a[i] = b[i]
                b[i] = t
            T.copy(A[0], a)
            T.copy(B[0], b)

    a, b = np.arange(16, dtype="f4"), -np.arange(16, dtype="f4")
    got = mt.execute(swap, a, b, machine="dgx-h100")
    np.testing.assert_array_equal(got["A"], b)
    np.testing.assert_array_equal(got["B"], a)


def test_guarded_stores_of_blocks_change_only_their_own_elements() -> None:
    @T.program
    def keep(X: T.Tensor((100,), "f32"), Y: T.Tensor((100,), "f32")):
        with T.Kernel(block=7, threads=16) as bx:
            for i in T.Parallel(16):
                if bx * 16 + i < 100:
                    Y[bx * 16 + i] = T.if_then_else(i > 0, X[T.max(bx * 16 + i - 1, 0)], 0.0) + 1.0

    x, y = np.random.default_rng(0).standard_normal(100, dtype="f4"), np.zeros(100, "f4")
    got = mt.execute(keep, x, y, machine="dgx-h100")["Y"]
    mt.run(keep, x, y)
    np.testing.assert_array_equal(got, y)


def test_atomics_of_blocks_on_one_element_add_up() -> None:
    @T.program
    def count(S: T.Tensor((3,), "i32")):
        with T.Kernel(block=10, threads=32) as bx:
            for i in T.Parallel(32):
                T.atomic_add(S[(bx + i) % 3], 1)

    got = mt.execute(count, np.zeros(3, "i4"), machine="dgx-h100")["S"]
    assert got.sum() == 320


def test_rounds_of_a_region_that_a_condition_leaves_out() -> None:
    @T.program
    def some(A: T.Tensor((6, 32), "f32"), B: T.Tensor((6, 32), "f32")):
        with T.Kernel(device=1, block=2, threads=32) as bx, T.Scale("device"):
            t = T.alloc((32,), "f32", level="l2")
            T.clear(t)
            for s in T.serial(6):
                if s % 2 == 1:
                    with T.Scale("block"):
                        x = T.alloc((16,), "f32")
                        y = T.alloc((16,), "f32")
                        T.copy(x, A[s, bx * 16 : bx * 16 + 16])
                        T.copy(y, t[bx * 16])
                        for i in T.Parallel(16):
                            x[i] = x[i] + y[i]
                        T.copy(t[bx * 16], x)
                T.copy(B[s, 0:32], t)

    a, b = np.random.default_rng(0).standard_normal((6, 32), dtype="f4"), np.zeros((6, 32), "f4")
    result = mt.simulate(some, a, b, machine="dgx-h100")
    mt.run(some, a, b)
    np.testing.assert_array_equal(result.outputs["B"], b)


def test_time_is_between_the_bounds_and_figures_follow() -> None:
    prog = gemm(512, 512, 512, 128, 128, 64)
    lowered = mt.lower(prog, machine="dgx-h100")
    result = mt.simulate(prog, machine="dgx-h100")
    found = figures(lowered, result)
    assert found.flops["tensor"] == 2 * 512**3
    assert found.levels[0].instances == 16
    assert 0 < (found.share_of_peak or 0) <= (found.share_of_roofline or 0) < 1
    read = 2 * 512 * 512 * 2  # both inputs once: the cache has the rest, and keeps the result
    assert found.intensity == 2 * 512**3 / read
    cache = result.traffic["l2_cache"]
    assert cache.hit_rate == cache.hits / (cache.hits + cache.misses)
    assert f"{cache.hit_rate:.1%} hits" in result.summary()
    assert found.as_dict()["traffic"]["l2_cache"]["hit_rate"] == cache.hit_rate
    assert result.outputs is None


def test_a_copy_is_held_to_the_roofline_of_memory() -> None:
    """The roof at a low intensity is the memory's bandwidth, not the engine's peak."""

    @T.program
    def add(X: T.Tensor((1 << 16, 128), "f32"), Y: T.Tensor((1 << 16, 128), "f32")):
        with T.Kernel(block=(1 << 16) // 64, threads=128) as b:
            x = T.alloc((64, 128), "f32")
            T.copy(x, X[b * 64, 0])
            for i, j in T.Parallel(64, 128):
                x[i, j] = x[i, j] + 1.0
            T.copy(Y[b * 64, 0], x)

    lowered = mt.lower(add, machine="dgx-h100")
    found = figures(lowered, mt.simulate(lowered))
    assert (found.intensity or 0) < 1
    assert (found.share_of_peak or 0) < 0.1 < (found.share_of_roofline or 0) <= 1


def test_arrays_give_outputs_and_shapes_do_not() -> None:
    a = np.ones((64, 32), "f2")
    b = np.ones((32, 64), "f2")
    result = mt.simulate(gemm(64, 64, 32), a, b, np.zeros((64, 64), "f4"), machine="dgx-h100")
    np.testing.assert_array_equal(result.outputs["C"], np.full((64, 64), 32, "f4"))


def test_more_stages_help_until_the_engine_is_busy() -> None:
    times = [mt.simulate(gemm(64, 64, 1024, stages=s), machine="dgx-h100").time_ps for s in (1, 2, 4)]
    assert times[0] > times[1] > times[2]


def counting(most: int, step: int):
    @T.program
    def count(A: T.Tensor((4,), "i32")):
        with T.Kernel(block=1, threads=4):
            x = T.alloc((4,), "i32")
            T.copy(x, A[0])
            while T.bounded(x[0] < most, 64):
                for i in T.Parallel(4):
                    x[i] = x[i] + step
            T.copy(A[0], x)

    return count


@pytest.mark.parametrize(("most", "step"), [(0, 1), (1, 1), (30, 1), (63, 1), (30, 7)])
def test_a_while_ends_when_it_should(most: int, step: int) -> None:
    a = np.arange(4, dtype="i4")
    result = mt.simulate(counting(most, step), a, machine="dgx-h100")
    mt.run(counting(most, step), a)
    np.testing.assert_array_equal(result.outputs["A"], a)
    assert mt.price(counting(most, step), machine="dgx-h100").lower_ps <= result.time_ps


def test_a_while_that_never_ends_is_an_error() -> None:
    with pytest.raises(mt.MegatileError, match=r"test_lowering.py:\d+: .*while_goes_on"):
        mt.execute(counting(1, 0), np.zeros(4, "i4"), machine="dgx-h100")


def test_tickets_are_given_out_once() -> None:
    @T.program
    def take(T_: T.Tensor((1,), "i32"), Y: T.Tensor((12,), "i32"), Top: T.Tensor((1,), "i32")):
        with T.Kernel(block=12, threads=32) as bx:
            mine = T.atomic_add(T_[0], 2, return_prev=True)
            seen = T.atomic_max(Top[0], bx, return_prev=True)
            Y[bx] = mine + seen * 0

    for options in ({}, {"machine": "mi300x-8"}):
        got = mt.execute(take, np.ones(1, "i4"), np.zeros(12, "i4"), np.zeros(1, "i4"), **options)
        assert sorted(got["Y"].tolist()) == list(range(1, 25, 2))
        assert (got["T_"][0], got["Top"][0]) == (25, 11)


def test_swaps_of_an_instances_own_element() -> None:
    @T.program
    def swap(Y: T.Tensor((3, 4), "i32")):
        with T.Kernel(block=3, threads=4) as bx:
            state = T.alloc((1,), "i32", level="l1")
            T.fill(state, bx)
            Y[bx, 0] = T.atomic_cas(state[0], 1, 7)
            Y[bx, 1] = T.atomic_cas(state[0], 5, 8)
            Y[bx, 2] = T.atomic_exchange(state[0], 9)
            Y[bx, 3] = state[0]

    y = np.zeros((3, 4), "i4")
    result = mt.simulate(swap, y, machine="dgx-h100")
    mt.run(swap, y)
    np.testing.assert_array_equal(result.outputs["Y"], y)
    assert y.tolist() == [[0, 0, 0, 9], [1, 7, 7, 9], [2, 2, 2, 9]]
    plan = mt.lower(swap, machine="dgx-h100").plan
    assert mt.Plan.from_text(str(plan)) == plan
    assert mt.Plan.from_json(plan.to_json()) == plan


def test_one_sentence_with_its_line() -> None:
    @T.program
    def locked(A: T.Tensor((1,), "i32")):
        with T.Kernel(block=1, threads=4):
            old = T.atomic_cas(A[0], 0, 1)
            A[0] = old + 1

    with pytest.raises(
        LoweringError, match=r"test_lowering.py:\d+: an atomic_cas of i32 that several units .* lowered"
    ):
        mt.lower(locked, machine="dgx-h100")


def test_wrong_arguments() -> None:
    with pytest.raises(mt.MegatileError, match="takes 3 arrays or shapes"):
        mt.simulate(gemm(64, 64, 32), (64, 32), machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="is not a tile program"):
        mt.lower(print, machine="dgx-h100")
    with pytest.raises(mt.MegatileError, match="runs a program on arrays"):
        mt.execute(gemm(64, 64, 32), machine="dgx-h100")


def test_what_an_inner_loop_does_not_change_is_counted_once_for_each_round_outside():
    @T.program
    def scaled(X: T.Tensor((8, 16), "f32"), S: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=32):
            x, s = T.alloc((8, 16), "f32"), T.alloc((8,), "f32")
            T.copy(x, X[0, 0])
            T.copy(s, S[0])
            for i, j in T.Parallel(8, 16):
                x[i, j] = x[i, j] * (1.0 / s[i])
            T.copy(X[0, 0], x)

    nest = next(
        s for stream in mt.lower(scaled, machine="mi300x-8").plan.streams
        for s in pm.statements(stream.body) if getattr(s, "operation", "") == "nest"
    )  # fmt: skip
    assert int(nest.work.flops.evaluate({})) == 8 * 16 + 4 * 8


@pytest.mark.parametrize(("columns", "factor"), [(4, 2.0), (8, 1.0), (12, 4 / 3), (64, 1.0)])
def test_rows_are_moved_in_whole_sectors(columns, factor) -> None:
    """Columns of a wider tensor: rows of 16, 32, 48 B in sectors of 32 B; whole rows have no gaps."""

    @T.program
    def part(X: T.Tensor((512, 64), "f32"), Y: T.Tensor((512, 64), "f32")):
        with T.Kernel(block=4, threads=128) as b:
            x = T.alloc((128, columns), "f32")
            T.copy(x, X[b * 128, 0])
            T.copy(Y[b * 128, 0], x)

    lowered = mt.lower(part, machine="dgx-h100")
    found = figures(lowered)
    assert found.moved == 2 * 512 * columns * 4 * factor
    told = [row for row in found.as_dict()["sector_waste"] if row["memory"] == "hbm"]
    assert len(told) == (2 if factor > 1 else 0)
    assert all(row["factor"] == factor and "test_lowering.py" in row["source"] for row in told)
    assert ("× the bytes" in str(found)) == (factor > 1)
    machine = mt.machine("tpu-v5p")  # whose file gives no sectors
    assert figures(mt.lower(part, machine=machine)).moved == 2 * 512 * columns * 4


@pytest.mark.parametrize("scale", ["block", "warpgroup"])
def test_views_whose_owner_function_scatters_indices(scale: str) -> None:
    """Units have every third row, and columns of no order."""
    rows, units = 7, 3
    launch = {"device": 1, "block": units} if scale == "block" else {"block": 1, "warpgroup": units}
    level = "l2" if scale == "block" else "l1"

    @T.program
    def kernel(X: T.Tensor((rows, 6), "f32"), Y: T.Tensor((rows, 6), "f32"), S: T.Tensor((units, 4), "f32")):
        with T.Kernel(**launch), T.Scale("device" if scale == "block" else "block"):
            t = T.alloc((rows, 6), "f32", level=level)
            T.copy(t, X)
            with T.Scale(scale) as (r, _):
                mine = T.view(t, layout=lambda i, j: i % units)
                part = T.alloc((3, 6), "f32", level="l1")
                total = T.alloc((3,), "f32", level="l1")
                T.clear(part)
                for i, j in T.Parallel(mine.shape[0], 6):
                    mine[i, j] = mine[i, j] * 2.0 + r
                T.copy(part[0 : mine.shape[0], :], mine)
                T.reduce_sum(part, total, dim=1)
                T.copy(S[r, 0:3], total)
            T.copy(Y, t)

    x = np.arange(rows * 6, dtype="f4").reshape(rows, 6)
    arrays = [x, 0 * x, np.zeros((units, 4), "f4")]
    wanted = [a.copy() for a in arrays]
    mt.run(kernel, *wanted)
    lowered = mt.lower(kernel)
    mt.check(lowered)
    got = mt.execute(lowered, *arrays)
    np.testing.assert_array_equal(got["Y"], wanted[1])
    np.testing.assert_array_equal(got["Y"], 2 * x + (np.arange(rows) % units)[:, None])
    np.testing.assert_array_equal(got["S"], wanted[2])
    np.testing.assert_array_equal(mt.simulate(lowered, *arrays).outputs["S"], wanted[2])


def products_done(program: object, machine: str | mt.HDA) -> int:
    done = figures(mt.lower(program, machine=machine)).flops
    return done.get("tensor", 0) or done["vector"]


def test_products_stop_at_edges_where_the_engine_clips():
    """Rows and columns are rounded up to the steps of the engine, k is not; other engines do whole tiles."""
    host = mt.machine("cpu", vector_bits=512)
    M, N, K = 141, 300, 70
    done, whole = (products_done(gemm(*size, dtype="f32"), host) for size in ((M, N, K), (192, 320, 96)))
    assert whole - done == 2 * (192 * 320 * 96 - 144 * 320 * 70)
    h100 = [products_done(gemm(*size), "dgx-h100") for size in ((M, N, K), (192, 320, 96))]
    assert h100[0] == h100[1]


def test_a_tile_that_stays_over_a_loop_is_not_clipped():
    """As compiled code does it: only a loop that fills both operands is one long product."""

    def program(M, N):
        @T.program
        def kernel(A: T.Tensor((M, 32), "f32"), B: T.Tensor((32, N), "f32"), C: T.Tensor((M, N), "f32")):
            with T.Kernel(block=1, threads=128):
                a = T.alloc((64, 32), "f32", level="l1")
                b = T.alloc((32, 64), "f32", level="l1")
                c = T.alloc((64, 64), "f32")
                T.copy(a, A[0, 0])
                for j in T.serial(T.ceildiv(N, 64)):
                    T.clear(c)
                    T.copy(b, B[0, j * 64])
                    T.gemm(a, b, c)
                    T.copy(C[0, j * 64], c)

        return kernel

    assert products_done(program(60, 100), "cpu") == products_done(program(64, 128), "cpu")


def test_the_first_special_function_of_a_command_is_waited_for():
    def program(function):
        @T.program
        def kernel(X: T.Tensor((16,), "f32")):
            with T.Kernel(block=1, threads=128):
                x = T.alloc((16,), "f32")
                T.copy(x, X[0])
                for i in T.Parallel(16):
                    x[i] = function(x[i])
                T.copy(X[0], x)

        return kernel

    def longer(function):
        times = []
        for latency in ("0 ns", "40 ns"):
            host = mt.machine("cpu", **{"engines.special_functions.latency": latency})
            times.append(mt.simulate(program(function), (16,), machine=host).time_ns)
        return times[1] - times[0]

    assert longer(T.exp) == pytest.approx(40, rel=0.01)
    assert longer(lambda x: x + 1.0) == 0


def test_units_on_different_sides_of_a_branch_meet_where_both_have_the_same_meetings() -> None:
    def sums(looped: bool):
        @T.program
        def kernel(X: T.Tensor((4, 16), "f32"), Y: T.Tensor((4, 16), "f32")):
            with T.Kernel(block=1, warp=4), T.Scale("warp") as (w, _):
                x = T.alloc((1, 16), "f32", level="l1")
                T.copy(x, X[w, 0])
                if w % 2 == 0:
                    T.allreduce(x)
                else:
                    for i, j in T.Parallel(1, 16):
                        x[i, j] = x[i, j] * 2.0
                    for _ in T.serial(1) if looped else [0]:
                        T.allreduce(x)
                T.copy(Y[w, 0], x)

        return kernel

    x = np.arange(64, dtype="f4").reshape(4, 16)
    wanted = x[0] + 2 * x[1] + x[2] + 2 * x[3]
    got = mt.execute(sums(False), x, 0 * x, machine="dgx-h100")["Y"]
    np.testing.assert_array_equal(got, np.broadcast_to(wanted, x.shape))
    with pytest.raises(LoweringError, match="sides, taken by different units, have different meetings"):
        mt.lower(sums(True), machine="dgx-h100")


def test_explanations_do_not_depend_on_the_hash_seed() -> None:
    file = Path(__file__).parents[2] / "examples" / "27_flash_attention.py"
    command = [sys.executable, "-m", "megatile", "run", f"{file}:flash_attention(1, 4, 2, 96, 32)"]
    texts = [
        subprocess.run(
            [*command, "--explain", "--no-verify", "--no-verdict"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert texts[0] == texts[1]
    assert "(limited by " in texts[0]
