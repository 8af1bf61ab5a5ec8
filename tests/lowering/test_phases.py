"""``lowering/phases.py``: regions."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.lowering.errors import LoweringError


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


def chained(rounds: int, n: int = 128, blocks: int = 64):
    """Two phases in each turn of a loop; the second needs what other blocks have done in the first. A tile
    that nothing else fits beside lets each SM hold one block."""

    @T.program
    def kernel(
        X: T.Tensor((rounds, n), "f32"), Y: T.Tensor((rounds, n), "f32"), Z: T.Tensor((rounds, n), "f32")
    ):
        with T.Kernel(block=blocks, threads=32) as b:
            for g in T.serial(rounds):
                with T.Scale("block"):
                    x = T.alloc((n // blocks,), "f32")
                    room = T.alloc((40_000,), "f32", level="l1")
                    T.clear(room)
                    T.copy(x, X[g, b * (n // blocks)])
                    for i in T.Parallel(n // blocks):
                        x[i] = x[i] + 1.0
                    T.copy(Y[g, b * (n // blocks)], x)
                with T.Scale("block"):
                    y = T.alloc((n // blocks,), "f32")
                    T.copy(y, Y[g, (blocks - 1 - b) * (n // blocks)])
                    T.copy(Z[g, b * (n // blocks)], y)

    return kernel


def test_turns_of_a_loop_of_phases_never_wait_in_the_places_of_others() -> None:
    """640 instances for 132 SMs: those of later turns begin after those before."""
    x = np.arange(5 * 128, dtype="f4").reshape(5, 128)
    lowered = mt.lower(chained(5), machine="dgx-h100")
    mt.check(lowered)
    result = mt.simulate(lowered, x, 0 * x, 0 * x)
    np.testing.assert_array_equal(result.outputs["Z"], (x + 1).reshape(5, 64, 2)[:, ::-1].reshape(5, 128))
    one, *_, four, five = (mt.simulate(chained(r), machine="dgx-h100").time_ps for r in (1, 4, 5))
    launch = (4 * one - four) / 3
    assert five - launch == pytest.approx(5 * (one - launch), rel=0.02)
    runs = [stream.units for stream in lowered.plan.streams if stream.level == "block"]
    assert runs[0][:2] == ((0, 64, 1), (128, 192, 1))
    assert runs[1][:2] == ((64, 128, 1), (192, 256, 1))


def roles_among_phases(order: str):
    """Phases that add one: ``r`` by a producing and a consuming warp group, ``b`` by blocks."""

    @T.program
    def kernel(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((4, 8), "f32"), Z: T.Tensor((4, 8), "f32")):
        with T.Kernel(block=2, warpgroup=2):
            for kind, (before, after) in zip(order, [(X, Y), (Y, Z)], strict=True):
                with T.Scale("block") as (b, _):
                    if kind == "r":
                        slot = T.alloc((2, 2, 4), "f32", level="l1")
                        with T.Scale("warpgroup") as (role, _):
                            full = T.alloc((2,), "i32", level="l1")
                            y = T.alloc((2, 4), "f32", level="l0")
                            if role == 0:
                                for k in T.serial(2):
                                    T.copy(slot[k, 0:2, 0:4], before[b * 2, k * 4])
                                    T.signal(full[k], dst=1)
                            else:
                                for k in T.serial(2):
                                    T.wait(full[k], 1)
                                    for i, j in T.Parallel(2, 4):
                                        y[i, j] = slot[k, i, j] + 1.0
                                    T.copy(after[b * 2, k * 4], y)
                    else:
                        x = T.alloc((2, 8), "f32", level="l1")
                        T.copy(x, before[b * 2, 0])
                        for i, j in T.Parallel(2, 8):
                            x[i, j] = x[i, j] + 1.0
                        T.copy(after[b * 2, 0], x)

    return kernel


@pytest.mark.parametrize("order", ["rb", "br", "rr"])
def test_blocks_of_one_phase_have_no_warp_groups_of_another(order: str) -> None:
    x = np.arange(32, dtype="f4").reshape(4, 8)
    lowered = mt.lower(roles_among_phases(order), machine="dgx-h100")
    found = mt.execute(lowered, x, 0 * x, 0 * x)
    np.testing.assert_array_equal(found["Z"], x + 2)
    units = [
        unit
        for s in lowered.plan.streams
        if s.level == "warpgroup"
        for run in s.units
        for unit in range(*run)
    ]
    assert sorted(units) == list(range(16 if order == "rr" else 8))
