"""Mistakes that kernels of others really had, as small programs: found under every schedule, with both lines
where two statements are at odds; the corrected twin of each runs clean and equals NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError

SCHEDULES = [("round-robin", 0), ("adversarial", 0), ("random", 0), ("random", 1), ("random", 2)]
ROUNDS = 3


def ring_buffer_reuse(correct: bool) -> Any:
    """The next round puts into a buffer that its owner may still be reading."""

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                v = T.view(A, layout=T.FullRow)
                mine, inbox = T.alloc((1, 8), "f32", level="l2"), T.alloc((1, 8), "f32", level="l2")
                T.copy(mine, v)
                for _round in T.serial(ROUNDS):
                    T.copy(inbox, mine, dst=(r + 1) % n)
                    T.barrier()
                    T.copy(mine, inbox)
                    if correct:
                        T.barrier()
                T.copy(v, mine)

    return kernel


def counts_that_do_not_match(correct: bool) -> Any:
    """Every unit but itself signals, and one more is waited for."""

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                v = T.view(A, layout=T.FullRow)
                inbox = T.alloc((4, 8), "f32", level="l2")
                arrived = T.alloc((1,), "i32", level="l2")
                for p in T.serial(n):
                    if p != r:
                        T.copy(inbox[r : r + 1, 0:8], v, dst=p)
                        T.signal(arrived[0], dst=p)
                T.wait(arrived[0], n - 1 if correct else n)
                T.copy(v, inbox[(r + 3) % n : (r + 3) % n + 1, 0:8])

    return kernel


def one_pad_for_two_groups(correct: bool) -> Any:
    """Rows and columns of a grid count on one flag: a column's signal passes for a row's."""

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=(2, 2)):
            with T.Scale("device") as r:
                x, y = r.coords
                v = T.view(A, layout=T.FullRow)
                across, down = T.alloc((1, 8), "f32", level="l2"), T.alloc((1, 8), "f32", level="l2")
                pad = T.alloc((2,), "i32", level="l2")
                T.copy(across, v, dst=1 - x, axis=0)
                T.signal(pad[0], dst=1 - x, axis=0)
                T.copy(down, v, dst=1 - y, axis=1)
                T.signal(pad[1 if correct else 0], dst=1 - y, axis=1)
                T.wait(pad[0], 1)
                T.copy(v, across)
                T.wait(pad[1 if correct else 0], 1 if correct else 2)

    return kernel


def double_buffer_without_hand_over(correct: bool) -> Any:
    """The producer fills slots and never asks whether the consumer is done with them."""
    return pipeline(slots=2, hand_over=correct, ahead=0)


def producer_two_stages_ahead(correct: bool) -> Any:
    """It waits for a slot to be empty, but for the one before the one it fills."""
    return pipeline(slots=2, hand_over=True, ahead=0 if correct else 1)


def pipeline(slots: int, hand_over: bool, ahead: int) -> Any:
    steps = 6

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(block=1, threads=256):
            ring = T.alloc((slots, 8), "f32", level="l1")
            sums = T.alloc((8,), "f32", level="l1")
            with T.Scale("warpgroup") as (w, _n):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                if w == 0:
                    for k in T.serial(steps):
                        if hand_over:  # noqa: SIM102
                            if k >= slots + ahead:
                                T.wait(empty[(k - ahead) % slots], (k - ahead) // slots)
                        T.copy(ring[k % slots, 0:8], A[k % 4, 0])
                        T.signal(full[k % slots], dst=1)
                else:
                    T.clear(sums)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        for i in T.Parallel(8):
                            sums[i] = sums[i] + ring[k % slots, i]
                        T.signal(empty[k % slots], dst=0)
            T.copy(A[0, 0], sums)

    return kernel


def collective_under_a_condition(correct: bool) -> Any:
    """Only units that have work come to it."""

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _n):
                v = T.view(A, layout=T.FullRow)
                if correct or v[0, 0] > 8:
                    T.allreduce(v)

    return kernel


def no_fence_before_a_remote_signal(correct: bool) -> Any:
    """Data goes to one unit, the signal to another, which passes it on."""

    @T.program
    def kernel(A: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                v = T.view(A, layout=T.FullRow)
                inbox, flag = T.alloc((1, 8), "f32", level="l2"), T.alloc((1,), "i32", level="l2")
                if r == 0:
                    T.copy(inbox, v, dst=2)
                    if correct:
                        T.fence()
                    T.signal(flag[0], dst=1)
                elif r == 1:
                    T.wait(flag[0], 1)
                    T.signal(flag[0], dst=2)
                elif r == 2:
                    T.wait(flag[0], 1)
                    T.copy(v, inbox)

    return kernel


def rows(*order: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: a[list(order)]


def summed(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    out[0] = a.sum(axis=0) + a[0] + a[1]
    return out


LINE = r" at line \d+"
CASES = [
    (ring_buffer_reuse, r"data race on '\w+'" + ".*" + LINE, rows(1, 2, 3, 0)),
    (
        counts_that_do_not_match,
        r"deadlock: device 0 waits at T.wait \(line \d+\) until 'arrived' is 4, and it is 3; .*"
        r"'arrived' is signalled at line \d+",
        rows(3, 0, 1, 2),
    ),
    (one_pad_for_two_groups, r"data race on '\w+'.*" + LINE, rows(1, 0, 3, 2)),
    (double_buffer_without_hand_over, "data race on 'ring'.*" + LINE, summed),
    (producer_two_stages_ahead, "data race on 'ring'.*" + LINE, summed),
    (
        collective_under_a_condition,
        r"T.allreduce is not reached by device 0, 1; device [23] waits there, under the 'if' of line \d+",
        lambda a: np.tile(a.sum(axis=0), (4, 1)),
    ),
    (no_fence_before_a_remote_signal, r"data race on '\w+'.*" + LINE, rows(0, 1, 0, 3)),
]


@pytest.mark.parametrize(("make", "message", "expected"), CASES, ids=[c[0].__name__ for c in CASES])
def test_the_mistake_is_found_and_its_twin_is_clean(make: Any, message: str, expected: Any) -> None:
    wrong, right = make(correct=False), make(correct=True)
    data = np.arange(32, dtype=np.float32).reshape(4, 8)
    for schedule, seed in SCHEDULES:
        with pytest.raises(MegatileError, match=f"(?s){message}") as caught:
            mt.run(wrong, data.copy(), schedule=schedule, seed=seed)
        assert caught.value.place is not None
        assert caught.value.advice
        a = data.copy()
        mt.run(right, a, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(a, expected(data), f"{make.__name__} {schedule}")
