"""``lowering/elements.py``: one ``nest`` command."""

import numpy as np
import pytest
from tests.lowering.shared import scaled

import megatile as mt
import megatile.language as T


def test_elementwise_code_on_a_tensor_gets_all_of_its_bandwidth():
    """Resident blocks take turns on their SM's engine: each command has the SM's part, not the block's."""
    in_place = mt.simulate(scaled("rows"), machine="dgx-h100").time_ps
    moved = 2 * 2048 * 2048 * 4 / mt.machine("dgx-h100").memory("hbm").effective_bandwidth * 1e12
    assert in_place < 3.2e6 + 1.2 * moved


def summed(once: bool, n: int = 1 << 18):
    @T.program
    def program(X: T.Tensor((n,), "f32"), Y: T.Tensor((1,), "f32")):
        with T.Kernel(block=n // 4096, threads=256) as b:
            x, s = T.alloc((4096,), "f32"), T.alloc((1,), "f32")
            T.copy(x, X[b * 4096])
            if once:
                T.reduce_sum(x, s, dim=0)
                T.atomic_add(Y[0], s[0])
            else:
                for i in T.Parallel(4096):
                    T.atomic_add(Y[0], x[i])

    return program


def test_atomics_on_one_address_follow_each_other():
    """2¹⁸ of them, one a cycle of 1.83 GHz; one for each block hardly counts."""
    many, few = (mt.simulate(summed(once), machine="dgx-h100") for once in (False, True))
    assert many.time_ps - few.time_ps == pytest.approx((1 << 18) / 1.83e9 * 1e12, rel=0.05)
    free = mt.machine("dgx-h100", **{"memory.hbm.atomic": "0 ns"})
    assert mt.simulate(summed(False), machine=free).time_ps < 1.2 * few.time_ps
    plan = many.plan
    assert "atomics=4096" in str(plan)
    assert mt.Plan.from_text(str(plan)) == plan


def test_atomics_that_data_spread_are_charged_as_if_evenly():
    @T.program
    def histogram(X: T.Tensor((4096,), "i32"), H: T.Tensor((64,), "i32")):
        with T.Kernel(block=1, threads=256):
            x = T.alloc((4096,), "i32")
            T.copy(x, X[0])
            for i in T.Parallel(4096):
                T.atomic_add(H[x[i]], 1)

    assert "atomics=64" in str(mt.lower(histogram, machine="dgx-h100").plan)


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


def test_a_store_reaches_every_copy_of_a_tile() -> None:
    @T.program
    def kernel(X: T.Tensor((2, 8), "f32")):
        with T.Kernel(block=1, warpgroup=2):
            x = T.alloc((8,), "f32", level="l0")
            with T.Scale("warpgroup"):
                T.fill(T.view(x, layout=T.Replica), 1.0)
            for i in T.Parallel(8):
                x[i] = 2.0
            with T.Scale("warpgroup") as (rank, _):
                mine = T.view(x)
                for i in T.Parallel(8):
                    mine[i] = mine[i] + T.cast(rank, "f32")
                T.copy(X[rank, :], mine)

    found = mt.execute(kernel, np.zeros((2, 8), np.float32), machine="dgx-h100")["X"]
    np.testing.assert_array_equal(found, np.repeat(np.float32([[2], [3]]), 8, axis=1))
