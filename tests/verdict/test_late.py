"""Puts that could go before work: those into another slot of a buffer than the work reads."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.late import _late, late_messages
from megatile.verdict.study import Study


def ring(slots, first, n=64):
    """Every device works on a slot of a buffer, then passes it on."""
    shape = (slots, n) if first else (n, slots)

    @T.program
    def made(X: T.Tensor((4, n), "f32"), Y: T.Tensor((4, n), "f32")):
        with T.Kernel(device=4), T.Scale("device") as (r, count):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            buffer = T.alloc(shape, "f32", level="l2")
            for i in T.Parallel(n):
                if first:
                    buffer[0, i] = x[0, i]
                else:
                    buffer[i, 0] = x[0, i]
            T.barrier()
            for s in T.serial(count):
                for i in T.Parallel(n):
                    y[0, i] = y[0, i] + (buffer[s % slots, i] if first else buffer[i, s % slots])
                T.barrier()
                new, now = (s + 1) % slots, s % slots
                if first:
                    T.copy(buffer[new, 0:n], buffer[now, 0:n], dst=(r + 1) % count)
                else:
                    T.copy(buffer[0:n, new], buffer[0:n, now], dst=(r + 1) % count)
                T.barrier()

    return made


@pytest.mark.parametrize("first", [True, False])
def test_a_put_into_another_slot_could_go_before_the_work(first):
    found = [list(_late(mt.lower(ring(slots, first), machine="dgx-h100").source)) for slots in (2, 1)]
    assert list(map(len, found)) == [1, 0]


def shifted(waits_first, credit=False, n=1 << 16, devices=4):
    """Every device but the last sends its vector on: after what it gets itself, or before."""

    @T.program
    def made(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, count):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            landing = T.alloc((1, n), "f32", level="l2")
            ready = T.alloc((1,), "i32", level="l2")
            if credit and r > 0:
                T.signal(ready[0], dst=r - 1)
            if waits_first and (r < count - 1 if credit else r > 0):
                T.wait(ready[0], 1)
            if r < count - 1:
                T.copy(landing, x, dst=r + 1)
                if not credit:
                    T.signal(ready[0], dst=r + 1)
            if not waits_first and r > 0:
                T.wait(ready[0], 1)
            T.copy(y, landing)

    return made


def test_a_put_does_not_wait_for_a_message_that_it_does_not_pass_on():
    slow, fast = (mt.simulate(shifted(first), machine="dgx-h100") for first in (True, False))
    (found,) = late_messages(Study(slow))
    assert found.time_ps == pytest.approx(fast.time_ps, rel=0.01)
    assert "chain" in found.bottleneck
    assert not list(late_messages(Study(fast)))


def test_a_put_waits_until_there_is_room_for_it():
    assert not list(_late(mt.lower(shifted(True, credit=True), machine="dgx-h100").source))
