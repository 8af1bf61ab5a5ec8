"""Units that wait for each other, compiled: what goes wrong is said, and calls do not disturb each other."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.test_shared import assert_no_more, state

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DeadlockError


def exchange(units: int, broken: bool = False):
    """Every block puts its row into the next one's tile."""

    @T.program
    def kernel(A: T.Tensor((units, 8), "f32"), B: T.Tensor((units, 8), "f32")):
        with T.Kernel(block=units), T.Scale("block") as (r, n):
            inbox = T.alloc((1, 8), "f32", level="l1")
            flag = T.alloc((1,), "i32", level="l1")
            T.copy(inbox, A[r, 0], dst=(r + 1) % n)
            if not broken:
                T.signal(flag, dst=(r + 1) % n)
            T.wait(flag, 1)
            T.copy(B[r, 0], inbox)
            T.barrier()

    return kernel


@T.program
def doubled(A: T.Tensor((8, 8), "f32"), B: T.Tensor((8, 8), "f32")):
    with T.Kernel(block=8) as row:
        mine = T.alloc((1, 8), "f32")
        T.copy(mine, A[row, 0])
        for _, j in T.Parallel(1, 8):
            mine[0, j] = 2.0 * mine[0, j]
        T.copy(B[row, 0], mine)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("units", [1, 2, 7, 1000])
def test_puts_signals_and_barriers(units: int, threads: int) -> None:
    k = mt.compile(exchange(units), threads=threads)
    a = np.arange(units * 8, dtype=np.float32).reshape(units, 8)
    b = np.zeros_like(a)
    for _ in range(3):
        b[:] = 0
        k(a, b)
        np.testing.assert_array_equal(b, np.roll(a, 1, axis=0))


@pytest.mark.parametrize("threads", [1, 2])
def test_what_a_unit_has_copied_others_may_change(threads: int) -> None:
    """One block puts a tile, the other copies it, says so, and multiplies its copy when the next has come."""

    @T.program
    def kernel(
        X: T.Tensor((3, 16, 16), "f32"), B: T.Tensor((16, 16), "f32"), Y: T.Tensor((2, 16, 16), "f32")
    ):
        with T.Kernel(block=2, threads=32), T.Scale("block") as (r, n):
            inbox, a, b = (T.alloc((16, 16), "f32", level="l1") for _ in range(3))
            full, free = (T.alloc((1,), "i32", level="l1") for _ in range(2))
            c = T.alloc((16, 16), "f32")
            if r == 0:
                for k in T.serial(3):
                    T.wait(free, k)
                    T.copy(inbox, X[k, 0, 0], dst=1)
                    T.signal(full, dst=1)
            else:
                T.copy(b, B)
                for k in T.serial(2):
                    T.wait(full, k + 1)
                    T.copy(a, inbox)
                    T.signal(free, dst=0)
                    T.wait(full, k + 2)
                    T.gemm(a, b, c, clear_accum=True)
                    T.copy(Y[k, 0, 0], c)
            T.barrier()

    x, b = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)
    y = np.zeros((2, 16, 16), np.float32)
    mt.compile(kernel, threads=threads)(x, b[0], y)
    np.testing.assert_allclose(y, x[:2] @ b[0], rtol=1e-5, atol=1e-5)


def test_a_signal_that_never_comes_is_a_deadlock() -> None:
    k = mt.compile(exchange(4, broken=True), threads=2)
    with pytest.raises(DeadlockError, match="4 units wait for each other, and none can go on"):
        k(np.zeros((4, 8), np.float32), np.zeros((4, 8), np.float32))


def test_a_barrier_that_not_all_reach_is_a_deadlock() -> None:
    @T.program
    def kernel(A: T.Tensor((4,), "f32")):
        with T.Kernel(block=4), T.Scale("block") as (r, n):
            if A[r] > 0:
                T.barrier()
            A[r] = 2.0

    k = mt.compile(kernel, threads=2)
    k(np.ones(4, np.float32))
    k(np.zeros(4, np.float32))
    with pytest.raises(DeadlockError, match="2 units wait"):
        k(np.array([1, 0, 1, 0], np.float32))


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    k = mt.compile(exchange(16), threads=2)
    wrong = []

    def call(seed: int) -> None:
        a = np.full((16, 8), seed, np.float32) + np.arange(16, dtype=np.float32)[:, None]
        for _ in range(50):
            b = np.zeros_like(a)
            k(a, b)
            if not np.array_equal(b, np.roll(a, 1, axis=0)):
                wrong.append(seed)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_goes_on_without_the_pool() -> None:
    k = mt.compile(exchange(8), threads=2)
    a, b = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32)
    k(a, b)
    child = os.fork()
    if child == 0:
        b[:] = 0
        k(a, b)
        os._exit(0 if (b == 1).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_several_devices_share_the_memory_of_one_process() -> None:
    @T.program
    def kernel(A: T.Tensor((4, 16), "f32"), C: T.Tensor((16,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                mine = T.view(A, layout=T.Shard(0))
                total = T.view(C, layout=T.Replica)
                T.copy(total[0:16], mine[0, 0:16])
                T.allreduce(total)

    a = np.random.default_rng(0).standard_normal((4, 16), dtype=np.float32)
    for threads in (1, 2):
        c = np.zeros(16, np.float32)
        mt.compile(kernel, machine="dgx-h100", threads=threads)(a, c)
        np.testing.assert_allclose(c, a.sum(0), rtol=1e-6)


def test_profile_counts_the_work_of_products() -> None:
    @T.program
    def kernel(A: T.Tensor((32, 32), "f32"), C: T.Tensor((32, 32), "f32")):
        with T.Kernel(block=2) as bx:
            a = T.alloc((32, 32), "f32")
            c = T.alloc((32, 16), "f32")
            T.copy(a, A[0, 0])
            T.clear(c)
            for _ in T.serial(3):
                T.gemm(a, a[0:32, 0:16], c)
            T.copy(C[0, bx * 16], c)

    x = np.zeros((32, 32), np.float32)
    assert mt.compile(kernel, threads=1).profile(x, x.copy()).flops == 2 * 3 * 2 * 32 * 32 * 16


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_calls_leave_nothing_behind() -> None:
    """``MEGATILE_LAUNCHES=10000`` does more of them."""
    plain, waiting = mt.compile(doubled, threads=2), mt.compile(exchange(8), threads=2)
    a, b = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32)

    def calls(count: int) -> None:
        for _ in range(count):
            plain(a, b)
            waiting(a, b)

    calls(50)
    before = state()
    calls(int(os.environ.get("MEGATILE_LAUNCHES", "2000")))
    assert_no_more(before, state())
