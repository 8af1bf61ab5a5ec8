"""How many blocks an SM holds; those that wait for a slot are explained by the blocks before them."""

import pytest

import megatile as mt
import megatile.language as T

WAVES, WIDTH = 4, 40_000


@T.program
def scale(X: T.Tensor((132 * WAVES, WIDTH), "f32"), Y: T.Tensor((132 * WAVES, WIDTH), "f32")):
    with T.Kernel(block=132 * WAVES, threads=128) as b:
        x = T.alloc((1, WIDTH), "f32", level="l1")  # one block fits on an SM
        T.copy(x, X[b, 0])
        for i, j in T.Parallel(1, WIDTH):
            x[i, j] = x[i, j] * 2.0
        T.copy(Y[b, 0], x)


def test_the_critical_path_goes_through_all_waves():
    r = mt.simulate(scale, machine="dgx-h100")
    work = [step for step in r.critical_path if "test_waves" in step.event.source]
    assert len(work) == 3 * WAVES
    assert max(step.adds_ps for step in work) < r.time_ps / (WAVES - 1)
    assert sum(step.adds_ps for step in r.critical_path) == r.time_ps


@pytest.mark.parametrize(("threads", "resident"), [(32, 32), (64, 32), (128, 16), (512, 4), (1024, 2)])
def test_threads_limit_the_blocks_of_an_sm(threads, resident):
    """2048 threads and 32 blocks fit on one SM of an H100."""

    @T.program
    def double(X: T.Tensor((4096, 1024), "f32"), Y: T.Tensor((4096, 1024), "f32")):
        with T.Kernel(block=4096, threads=threads) as b:
            x = T.alloc((1, 1024), "f32", level="l0")
            T.copy(x, X[b, 0])
            for i, j in T.Parallel(1, 1024):
                x[i, j] = x[i, j] * 2.0
            T.copy(Y[b, 0], x)

    (level,) = mt.lower(double, machine="dgx-h100").plan.levels
    assert level.slots == resident
