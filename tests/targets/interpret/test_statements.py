"""``targets/interpret/statements.py``: what each statement does."""

from tests.targets.interpret.shared import f32, fails

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
