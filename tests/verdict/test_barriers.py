"""Barriers that order nothing: what they wait for is in another slot of a buffer."""

import megatile as mt
import megatile.language as T
from megatile.verdict.barriers import _needless


def ring(slots, extra, after=False, devices=4, n=64):
    """Every device passes on a slot of a buffer, and works on the one it has."""

    @T.program
    def made(X: T.Tensor((devices, n), "f32"), Y: T.Tensor((devices, n), "f32")):
        with T.Kernel(device=devices), T.Scale("device") as (r, count):
            x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            buffer = T.alloc((slots, n), "f32", level="l2")
            T.copy(buffer[0], x[0, 0:n])
            T.barrier()
            for s in T.serial(count):
                if not after:
                    T.copy(buffer[(s + 1) % slots], buffer[s % slots], dst=(r + 1) % count)
                if extra:
                    T.barrier()
                for i in T.Parallel(n):
                    y[0, i] = y[0, i] + buffer[s % slots, i]
                if after:
                    T.barrier()
                    T.copy(buffer[(s + 1) % slots], buffer[s % slots], dst=(r + 1) % count)
                T.barrier()

    return made


def lines(program):
    source = mt.lower(program, machine="dgx-h100").source
    return len(_needless(source))


def test_a_barrier_before_work_on_another_slot_is_needless():
    assert lines(ring(2, extra=True)) == 1
    assert lines(ring(3, extra=True)) == 1
    assert lines(ring(2, extra=False)) == 0


def test_barriers_between_reads_and_puts_into_the_same_slot_are_needed():
    assert lines(ring(1, extra=True)) == 0
    assert (
        lines(ring(1, extra=False, after=True)) == 1
    )  # the one before the loop, whose puts come after its own


def test_barriers_between_phases_are_needed_only_where_units_read_what_others_write():
    def phases(puts, n=1024):
        @T.program
        def made(X: T.Tensor((4, n), "f32"), Y: T.Tensor((4, n), "f32")):
            with T.Kernel(device=4), T.Scale("device") as (r, count):
                x, y = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
                t = T.alloc((1, n), "f32", level="l2")
                if puts:
                    T.copy(t, x, dst=(r + 1) % count)
                else:
                    T.copy(t, x)
                T.barrier()
                for i, j in T.Parallel(1, n):
                    y[i, j] = t[i, j] * 2
                T.barrier()
                for i, j in T.Parallel(1, n):
                    y[i, j] = y[i, j] + t[i, j]

        return lines(made)

    assert (phases(puts=False), phases(puts=True)) == (2, 1)
