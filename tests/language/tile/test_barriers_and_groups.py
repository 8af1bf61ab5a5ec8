"""Barriers of groups, collectives on both sides of a branch, counts of an uneven all_to_all, atomics."""

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.targets.interpret.errors import DataRaceError, DeadlockError, OutOfBoundsError, RunError

SCHEDULES = ("round-robin", "random", "adversarial")


def on_devices(body: Any, units: int = 4) -> Any:
    @T.program
    def kernel(A: T.Tensor((units, 8), "f32")):
        with T.Kernel(device=units):
            with T.Scale("device") as (r, n):
                v = T.view(A, layout=T.FullRow)
                t = T.alloc((1, 8), "f32", level="l2")
                T.copy(t, v)
                body(r, n, t)
                T.copy(v, t)

    return kernel


def run(body: Any, units: int = 4, **options: Any) -> np.ndarray:
    a = np.arange(units * 8, dtype=np.float32).reshape(units, 8)
    mt.run(on_devices(body, units), a, **options)
    return a


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_collective_on_both_sides_of_a_branch_is_one_collective(schedule: str) -> None:
    def both(r, n, t):
        other = T.alloc((1, 8), "f32", level="l2")
        T.copy(other, t)
        if r < 2:
            T.allreduce(t)
        else:
            T.allreduce(other)
            T.copy(t, other)

    expected = np.arange(32, dtype=np.float32).reshape(4, 8).sum(axis=0)
    np.testing.assert_array_equal(run(both, schedule=schedule), np.tile(expected, (4, 1)))


def test_two_collectives_do_not_meet() -> None:
    def different(r, n, t):
        if r < 2:
            T.allreduce(t)
        else:
            T.allreduce(t, op="max")

    message = r"device 0 is at T.allreduce \(line \d+\), device 2 at T.allreduce .*: units that meet"
    with pytest.raises(DeadlockError, match=message):
        run(different)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tiles_that_are_reduced_in_opposite_order(schedule: str) -> None:
    def crossed(r, n, t):
        a, b = T.alloc((1, 8), "f32", level="l2"), T.alloc((1, 8), "f32", level="l2")
        T.copy(a, t)
        T.copy(b, t)
        if r < 2:
            T.allreduce(a)
            T.allreduce(b)
        else:
            T.allreduce(b)
            T.allreduce(a)

    first = crossed.__code__.co_firstlineno + 5
    lines = [rf"\(\S*test_barriers_and_groups.py:{first + i}\)" for i in (0, 1, 3, 4)]
    message = (
        r"opposite order: device 0 comes to '(\w+)' {}, then '(\w+)' {}; "
        r"device 2 comes to '\2' {}, then '\1' {}"
    ).format(*lines)
    with pytest.raises(DeadlockError, match=message):
        run(crossed, schedule=schedule)


def test_a_broadcast_reads_its_root_only() -> None:
    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                t = T.alloc((8,), "f32", level="l2")
                if r == 1:
                    T.fill(t, 7)
                T.broadcast(t, 1)
                T.copy(T.view(A, layout=T.FullRow)[0, 0], t)

    for schedule in SCHEDULES:
        a = np.zeros((4, 8), np.float32)
        mt.run(kernel, a, schedule=schedule)
        assert (a == 7).all()


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


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (lambda r, n, t: T.barrier(units=(0, 1)), "device 2 comes to a barrier of units 0, 1"),
        (lambda r, n, t: T.barrier(units=3), "T.barrier is not reached by device"),
        (lambda r, n, t: T.barrier(units=(0, 9)), "T.barrier with units=.*: there are 4 units of scale"),
        (lambda r, n, t: T.barrier(group=r // 2), "T.barrier with group= and no units="),
        (lambda r, n, t: T.atomic_add(t, t, return_prev=True), "of a region has no single old value"),
        (lambda r, n, t: T.all_to_all(t, t, t), "of f32 are not counts for 4 units"),
    ],
)
def test_what_cannot_meet(body: Any, message: str) -> None:
    with pytest.raises(MegatileError, match=message):
        run(lambda r, n, t: body(r, n, t))


def test_counts_of_an_uneven_all_to_all() -> None:
    def too_many(r, n, t):
        counts = T.alloc((4,), "i32", level="l2")
        x, out = T.alloc((8, 1), "f32", level="l2"), T.alloc((5, 1), "f32", level="l2")
        T.fill(x, 1)
        for i in T.Parallel(4):
            counts[i] = 2
        T.all_to_all(out, x, counts)

    def negative(r, n, t):
        counts = T.alloc((4,), "i32", level="l2")
        T.fill(counts, -1)
        T.all_to_all(t, t, counts)

    with pytest.raises(OutOfBoundsError, match="8 elements for 'tile_2', which has 5 in dim"):
        run(too_many)
    with pytest.raises(RunError, match=r"counts \[-1, -1, -1, -1\]"):
        run(negative)


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
