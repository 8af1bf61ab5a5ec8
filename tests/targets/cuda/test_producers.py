"""Warp groups that only copy for others: a step's copies are under way while the next one begins."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


def handed_on(slots: int, steps: int = 5, width: int = 64):
    """A producer, and a consumer that sums what it gets in each slot, and signals in two halves."""

    @T.program
    def program(X: T.Tensor((steps, width), "f32"), Y: T.Tensor((width,), "f32")):
        with T.Kernel(block=1, warpgroup=2):
            x = T.alloc((slots, width), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                total = T.alloc((width,), "f32", level="l1")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots * 2)
                        T.copy(x[k % slots, 0:width], X[k, 0:width])
                        T.signal(full[k % slots], dst=1)
                else:
                    T.clear(total)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        for i in T.Parallel(width):
                            total[i] = total[i] + x[k % slots, i]
                        T.signal(empty[k % slots], dst=0)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(Y[0:width], total)

    return program


@pytest.mark.parametrize("slots", [1, 3])
def test_signals_follow_the_next_copies_and_come_before_a_wait(slots: int) -> None:
    """With one slot, the producer waits for a consumer that waits for the signal it still owes. Two signals
    of one unit in a phase are none that an mbarrier can tell apart."""
    kernel = mt.compile(handed_on(slots), target="cuda")
    assert "cp_async_wait<1>();" in kernel.source
    assert "give(), wait_until(" in kernel.source
    x, y = np.random.default_rng(0).random((5, 64), np.float32), np.zeros(64, np.float32)
    kernel(x, y)
    np.testing.assert_allclose(y, x.sum(0), rtol=1e-6)
