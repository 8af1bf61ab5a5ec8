"""``language/tile/synchronise.py``: how units of a scale act together."""

import numpy as np
import pytest
from tests.language.tile.shared import SCHEDULES, f32, run, zeros

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError


def test_atomics() -> None:
    @T.program
    def p(I: T.Tensor((64,), "i32"), H: T.Tensor((4,), "i32"), M: T.Tensor((2,), "f32")):
        with T.Kernel(block=4) as b:
            for i in T.Parallel(16):
                T.atomic_add(H[I[b * 16 + i]], 1)
            T.atomic_max(M[0], T.cast(b, "f32"))
            T.atomic_min(M[1], -T.cast(b, "f32"))

    i = np.random.default_rng(0).integers(0, 4, 64).astype(np.int32)
    h, m = zeros(4, dtype=np.int32), zeros(2)
    mt.run(p, i, h, m)
    np.testing.assert_array_equal(h, np.bincount(i, minlength=4))
    np.testing.assert_array_equal(m, [3, -3])


def test_get_and_signals() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32"), Y: T.Tensor((4, 4), "f32"), Z: T.Tensor((4, 4), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                x, y, z = (T.view(t, layout=T.FullRow) for t in (X, Y, Z))
                t, u = T.alloc((1, 4), "f32", level="l2"), T.alloc((1, 4), "f32", level="l2")
                flag = T.alloc((1,), "i32", level="l2")
                T.copy(t, x)
                T.barrier()
                T.copy(y, t, src=(r + 1) % n)
                T.copy(u, x, dst=(r + 2) % n)
                T.signal(flag, dst=(r + 2) % n)
                T.wait(flag, 1)
                T.copy(z, u)

    for schedule in ("round-robin", "random", "adversarial"):
        x, y, z = f32(4, 4), zeros(4, 4), zeros(4, 4)
        mt.run(p, x, y, z, schedule=schedule, seed=3)
        np.testing.assert_array_equal(y, np.roll(x, -1, axis=0))
        np.testing.assert_array_equal(z, np.roll(x, 2, axis=0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_barriers_of_some_units(schedule: str) -> None:
    """Two pairs exchange rows; the barriers of one pair do not wait for the other."""

    def pairs(r, n, t):
        inbox = T.alloc((1, 8), "f32", level="l2")
        if r < 2:
            T.copy(inbox, t, dst=1 - r)
            T.barrier(units=(0, 1))
        else:
            T.copy(inbox, t, dst=5 - r)
            T.barrier(name="upper", units=2)
            T.barrier(name="upper", units=2)
        T.copy(t, inbox)

    expected = np.arange(32, dtype=np.float32).reshape(4, 8)[[1, 0, 3, 2]]
    np.testing.assert_array_equal(run(pairs, schedule=schedule), expected)


def test_a_barrier_of_others_orders_nothing() -> None:
    def wrong_pair(r, n, t):
        inbox = T.alloc((1, 8), "f32", level="l2")
        T.copy(inbox, t, dst=(r + 1) % n)
        T.barrier(group=r % 2, units=2)
        T.copy(t, inbox)

    with pytest.raises(DataRaceError):
        run(wrong_pair)


def test_tiles_are_added_indivisibly_by_many_blocks() -> None:
    @T.program
    def kernel(A: T.Tensor((6, 16), "f32"), total: T.Tensor((10,), "f32")):
        with T.Kernel(block=6, threads=32) as b:
            t = T.alloc_shared((16,), "f32")
            T.copy(t, A[b, 0])
            T.atomic_add(total[0], t)  # what lies over the edge is dropped

    a, total = np.random.default_rng(0).random((6, 16), np.float32), np.zeros(10, np.float32)
    mt.run(kernel, a, total, schedule="random")
    np.testing.assert_allclose(total, a.sum(axis=0)[:10], rtol=1e-6)


def test_dynamic_tickets() -> None:
    """Every tile is taken by exactly one block, whichever comes first."""

    @T.program
    def kernel(next_tile: T.Tensor((1,), "i32"), owner: T.Tensor((13,), "i32")):
        with T.Kernel(block=4, threads=32) as b:
            while True:
                tile = T.atomic_add(next_tile[0], 1, return_prev=True)
                if tile >= 13:
                    break
                owner[tile] = owner[tile] + b + 1

    for schedule in SCHEDULES:
        owner = np.zeros(13, np.int32)
        mt.run(kernel, np.zeros(1, np.int32), owner, schedule=schedule, seed=5)
        assert ((owner >= 1) & (owner <= 4)).all()


def test_an_atomic_without_result_orders_nothing() -> None:
    @T.program
    def kernel(turn: T.Tensor((1,), "i32"), x: T.Tensor((1,), "i32")):
        with T.Kernel(block=2, threads=32):
            T.atomic_add(turn[0], 1)
            x[0] = x[0] + 1

    with pytest.raises(DataRaceError):
        mt.run(kernel, np.zeros(1, np.int32), np.zeros(1, np.int32))
