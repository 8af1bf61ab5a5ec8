"""Puts that could go before work: those into another slot of a buffer than the work reads."""

import pytest

import megatile as mt
import megatile.language as T
from megatile.verdict.late import _late


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
