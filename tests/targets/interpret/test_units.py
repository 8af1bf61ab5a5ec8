"""``targets/interpret/units.py``: units that run statements."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError


def test_a_barrier_of_smaller_units_does_not_complete_a_put() -> None:
    @T.program
    def p(A: T.Tensor((2, 8), "f32"), B: T.Tensor((2, 8), "f32")):
        with T.Kernel(device=2, block=1, threads=256):
            with T.Scale("device") as (r, n):
                a, b = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullRow)
                t = T.alloc((1, 8), "f32", level="l2")
                T.clear(t)
                T.barrier()
                T.copy(t, a, dst=(r + 1) % n)
                with T.Scale("block"):
                    with T.Scale("warpgroup"):
                        T.barrier()
                T.copy(b, t)

    fails(DataRaceError, "data race on 't'", p, f32(2, 8), f32(2, 8), line="T.copy(b, t)")


def test_late_puts_show_without_checks() -> None:
    @T.program
    def p(A: T.Tensor((2, 4), "f32"), B: T.Tensor((2, 4), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                a, b = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullRow)
                t = T.alloc((1, 4), "f32", level="l2")
                T.clear(t)
                T.barrier()
                T.copy(t, a, dst=(r + 1) % n)
                T.copy(b, t)

    a, b = f32(2, 4), np.ones((2, 4), np.float32)
    mt.run(p, a, b, checks=False, schedule="adversarial")
    assert not np.array_equal(b, np.roll(a, 1, axis=0))
