"""Steps of loops: copies of several at a time, where only the computation is one by one."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.resized import axes, resized
from megatile.verdict.steps import copies_of_several_steps
from megatile.verdict.study import Study


def recurrence(chunk, rows=64, n=64):
    @T.program
    def kernel(X: T.Tensor((rows, n), "f32"), Y: T.Tensor((rows, n), "f32")):
        with T.Kernel(block=rows // 4, threads=128) as b:
            h = T.alloc((4, 1), "f32")
            x, y = T.alloc((4, chunk), "f32", level="l1"), T.alloc((4, chunk), "f32", level="l1")
            T.clear(h)
            for c in T.serial(n // chunk):
                T.copy(x, X[b * 4, c * chunk])
                if chunk == 1:
                    for i, j in T.Parallel(4, 1):
                        h[i, j] = 0.5 * h[i, j] + x[i, j]
                    T.copy(Y[b * 4, c], h)
                else:
                    for t in T.serial(chunk):
                        for i in T.Parallel(4):
                            h[i, 0] = 0.5 * h[i, 0] + x[i, t]
                            y[i, t] = h[i, 0]
                    T.copy(Y[b * 4, c * chunk], y)

    return kernel


def test_copies_for_several_steps_of_a_recurrence_take_what_chunks_take():
    slow, fast = (mt.simulate(recurrence(chunk), machine="dgx-h100") for chunk in (1, 16))
    (found,) = copies_of_several_steps(Study(slow))
    assert found.name == "small copies"
    assert found.gain == pytest.approx(slow.time_ps / fast.time_ps, rel=0.25)


def test_copies_for_several_steps_gain_no_more_than_the_busiest_part_allows():
    study = Study(mt.simulate(recurrence(1), machine="dgx-h100"))
    study.busiest = ("hbm", 0.9)  # as many bytes move as before
    (found,) = copies_of_several_steps(study)
    assert found.time_ps == pytest.approx(0.9 * study.base_ps, rel=1e-6)


def test_steps_that_hand_on_a_tile_are_not_made_wider():
    program = mt.lower(recurrence(1), machine="dgx-h100").source
    ((here, loop),) = [(here, loop) for here, loop in axes(program) if loop is not None]
    assert resized(program, here, loop, 2) is None
