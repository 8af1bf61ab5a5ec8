"""``targets/interpret/statements.py``: what each statement does."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError


def test_signal_before_the_put_races() -> None:
    @T.program
    def p(A: T.Tensor((2, 8), "f32"), B: T.Tensor((2, 8), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                a, b = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullRow)
                t = T.alloc((1, 8), "f32", level="l2")
                flag = T.alloc((1,), "i32", level="l2")
                T.clear(t)
                T.barrier()
                T.signal(flag, dst=(r + 1) % n)
                T.copy(t, a, dst=(r + 1) % n)
                T.wait(flag, 1)
                T.copy(b, t)

    fails(DataRaceError, "data race on 't': read by device", p, f32(2, 8), f32(2, 8), line="T.copy(b, t)")


def test_slot_reused_too_early() -> None:
    @T.program
    def p(A: T.Tensor((64,), "f32"), B: T.Tensor((64,), "f32")):
        with T.Kernel(block=1, warpgroup=2):
            slot = T.alloc((8,), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((1,), "i32", level="l1")
                mine = T.alloc((8,), "f32")
                if wg == 0:
                    for k in T.serial(8):
                        T.copy(slot, A[k * 8])
                        T.signal(full, dst=1)
                else:
                    for k in T.serial(8):
                        T.wait(full, k + 1)
                        T.copy(mine, slot)
                        T.copy(B[k * 8], mine)

    fails(DataRaceError, "data race on 'slot'", p, f32(64), f32(64))


def test_variables_keep_the_rounding_of_their_type() -> None:
    value = np.float32(0.6369617)  # its cube in f64, rounded, is another number

    @T.program
    def kernel(x: T.Tensor((1,), "f32"), y: T.Tensor((1,), "f32")):
        with T.Kernel(block=1):
            t = T.alloc((1,), "f32", level="l0")
            T.copy(t, x)
            v = T.cast(0, "f32")
            for _ in T.serial(1):
                v = t[0]
            t[0] = 0.0
            y[0] = v * v * v

    x, y = np.full(1, value), np.zeros(1, np.float32)
    mt.run(kernel, x, y)
    assert y[0] == value * value * value != np.float32(float(value) ** 3)


def test_every_statement_is_a_step() -> None:
    def steps(count: int) -> int:
        @T.program
        def kernel(x: T.Tensor((1,), "f32")):
            with T.Kernel(block=1):
                for _ in T.serial(count):
                    T.clear(x)

        return mt.run(kernel, np.zeros(1, np.float32)).steps

    assert steps(5) - steps(4) == steps(4) - steps(3) == 1
