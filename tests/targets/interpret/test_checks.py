"""Every check of the interpreter: it finds the mistake, at the user's line, and says what to try."""

import traceback
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.errors import ProgramError
from megatile.targets.interpret.errors import (
    ArgumentError,
    DataRaceError,
    DeadlockError,
    DependenceError,
    DeviceAssertionError,
    OutOfBoundsError,
    PartialError,
    ReplicaMismatchError,
    RunError,
    StaleSignalError,
    UninitialisedReadError,
)


def f32(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def fails(
    error: type[MegatileError], message: str, prog: Any, *arrays: Any, line: str = "", **options: Any
) -> None:
    """The run fails with this error, its message, and the user's line under the message."""
    with pytest.raises(error, match=f"(?s){message}") as caught:
        mt.run(prog, *arrays, **options)
    assert caught.value.advice
    text = str(caught.value)
    if line:
        assert line in text, text
        assert "^" in text
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert all("megatile" not in f.filename or f.filename.endswith("run.py") for f in frames[1:])


# --- data races -----------------------------------------------------------------------------------


def test_race_between_blocks() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2) as bx:
            x = T.alloc((8,), "f32")
            T.fill(x, bx)
            T.copy(X, x)

    fails(
        DataRaceError,
        "data race on 'X': written by block 1 here and written by block 0 at line",
        p,
        f32(8),
        line="T.copy(X, x)",
    )


def test_read_without_barrier_races_with_a_put() -> None:
    @T.program
    def p(A: T.Tensor((4, 8), "f32"), B: T.Tensor((4, 8), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, n):
                a, b = T.view(A, layout=T.FullRow), T.view(B, layout=T.FullRow)
                t = T.alloc((1, 8), "f32", level="l2")
                T.copy(t, a, dst=(r + 1) % n)
                T.copy(b, t)

    for schedule in ("round-robin", "random", "adversarial"):
        fails((DataRaceError, UninitialisedReadError), "'t'", p, f32(4, 8), f32(4, 8), schedule=schedule)
    fails(
        DataRaceError,
        r"read by device \d here and written by a put of device \d.*T.barrier\(\) of "
        r"scale 'device'",
        p,
        f32(4, 8),
        f32(4, 8),
        line="T.copy(b, t)",
    )


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


def test_warp_groups_writing_one_tile() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1, threads=256):
            x = T.alloc((8,), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                T.fill(x, wg)
            T.copy(X, x)

    fails(
        DataRaceError,
        "written by warpgroup 1 here and written by warpgroup 0.*of scale 'warpgroup'",
        p,
        f32(8),
    )


def test_phases_order_regions() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(block=8) as bx:
            with T.Scale("block"):
                x = T.alloc((1,), "f32")
                T.fill(x, bx)
                T.copy(X[bx], x)
            with T.Scale("block"):
                y = T.alloc((1,), "f32")
                T.copy(y, X[7 - bx])
                T.copy(Y[bx], y)

    x, y = f32(8), f32(8)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, np.arange(8)[::-1])


# --- uninitialised, out of bounds, dependence -----------------------------------------------------


def test_uninitialised_read() -> None:
    @T.program
    def p(X: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=1):
            a = T.alloc((8, 8), "f32")
            T.clear(a[0:4, :])
            T.copy(X, a)

    fails(
        UninitialisedReadError,
        r"'a' is read before it is written: element \(4, 0\).*T.clear",
        p,
        f32(8, 8),
        line="T.copy(X, a)",
    )


def test_uninitialised_accumulator() -> None:
    @T.program
    def p(A: T.Tensor((8, 8), "f32"), C: T.Tensor((8, 8), "f32")):
        with T.Kernel(block=1):
            a = T.alloc((8, 8), "f32")
            c = T.alloc((8, 8), "f32")
            T.copy(a, A)
            T.gemm(a, a, c)
            T.copy(C, c)

    fails(
        UninitialisedReadError,
        "'c' is read before it is written",
        p,
        f32(8, 8),
        f32(8, 8),
        line="T.gemm(a, a, c)",
    )


def test_uninitialised_integers_are_noticed_too() -> None:
    @T.program
    def p(X: T.Tensor((4,), "i32")):
        with T.Kernel(block=1):
            a = T.alloc((4,), "i32")
            for i in T.Parallel(4):
                a[i] = a[i] + 1
            T.copy(X, a)

    fails(
        UninitialisedReadError,
        "'a' is read before it is written",
        p,
        np.zeros(4, np.int32),
        line="a[i] = a[i] + 1",
    )


def test_slice_over_the_edge() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32"), Y: T.Tensor((16,), "f32")):
        with T.Kernel(block=2) as bx:
            y = T.alloc((8,), "f32")
            T.copy(y, X[bx * 8 : bx * 8 + 8])
            T.copy(Y[bx * 8], y)

    fails(
        OutOfBoundsError,
        r"'X\[8:16\]' is out of bounds: dimension 0 has 10 elements.*an anchor",
        p,
        f32(10),
        f32(16),
        line="T.copy(y, X[bx * 8 : bx * 8 + 8])",
    )


def test_anchor_entirely_outside() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32"), Y: T.Tensor((32,), "f32")):
        with T.Kernel(block=4) as bx:
            y = T.alloc((8,), "f32")
            T.copy(y, X[bx * 8])
            T.copy(Y[bx * 8], y)

    fails(OutOfBoundsError, r"'X\[16:24\]' lies entirely outside.*the loop bound", p, f32(10), f32(32))


def test_element_out_of_bounds() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                X[i + 4] = X[i + 4] + 1.0

    fails(
        OutOfBoundsError,
        r"out of bounds: dimension 0 has 10 elements",
        p,
        f32(10),
        line="X[i + 4] = X[i + 4] + 1.0",
    )


def test_gather_out_of_bounds() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32"), I: T.Tensor((4,), "i32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                Y[i] = X[I[i]]

    fails(OutOfBoundsError, r"'X\[9\]' is out of bounds", p, f32(4), np.array([0, 9, 1, 2], np.int32), f32(4))


def test_dependence_between_iterations() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(7):
                X[i + 1] = X[i] + 1.0

    fails(
        DependenceError,
        r"iteration 1 of T.Parallel reads an element of 'X' that iteration 0 "
        r"writes.*T.serial",
        p,
        f32(8),
    )


def test_iterations_writing_one_element() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(8):
                Y[i // 2] = X[i]

    fails(
        DependenceError,
        r"several iterations of T.Parallel write 'Y\[0\]'.*T.atomic_add",
        p,
        f32(8),
        f32(4),
        line="Y[i // 2] = X[i]",
    )


def test_independent_iterations_with_other_indices_are_fine() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                X[i + 4] = X[i] * 2.0

    x = f32(8)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0, 1, 2, 3, 0, 2, 4, 6])


# --- deadlock and participation -------------------------------------------------------------------


def test_collective_under_if() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.FullRow)
                if r < 2:
                    T.allreduce(x)

    fails(
        DeadlockError,
        "T.allreduce is not reached by device 2, 3; device [01] waits there.*out of the 'if'",
        p,
        f32(4, 4),
        line="T.allreduce(x)",
    )


def test_barrier_under_if() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=256):
            with T.Scale("warpgroup") as (wg, _):
                if wg == 0:
                    T.barrier()

    fails(DeadlockError, "T.barrier is not reached by warpgroup 1", p, f32(4), line="T.barrier()")


def test_wait_without_signal() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device"):
                flag = T.alloc((1,), "i32", level="l2")
                T.wait(flag, 1)

    fails(
        DeadlockError,
        r"deadlock: device 0 waits at T.wait \(line \d+\); device 1 waits at "
        r"T.wait.*needs a signal",
        p,
        f32(4),
        line="T.wait(flag, 1)",
    )


def test_waiting_for_an_instance_that_is_not_resident() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=20000, threads=1024):
            with T.Scale("block"):
                T.barrier()

    fails(
        DeadlockError,
        r"deadlock: block 0 waits at T.barrier.*are not resident, only \d+ fit at "
        r"once.*ending the region",
        p,
        f32(4),
    )


def test_put_into_an_instance_that_is_not_resident() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=20000, threads=1024):
            with T.Scale("block") as (r, n):
                t = T.alloc((4,), "f32", level="l1")
                T.copy(t, X, dst=n - 1 - r)

    fails(DeadlockError, "block 19999 is not resident yet: more instances were launched than fit", p, f32(4))


def test_no_such_peer() -> None:
    @T.program
    def p(X: T.Tensor((2, 4), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                t = T.alloc((1, 4), "f32", level="l2")
                T.copy(t, T.view(X, layout=T.FullRow), dst=r + 1)

    fails(RunError, "there is no device 2: ranks go from 0 to 1.*% size", p, f32(2, 4))


def test_stale_signal() -> None:
    @T.program
    def p(F: T.Tensor((2,), "i32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                f = T.view(F, layout=T.FullRow)
                T.signal(f[0], dst=(r + 1) % n)
                T.wait(f[0], 1)

    flags = np.zeros(2, np.int32)
    mt.run(p, flags)
    np.testing.assert_array_equal(flags, [1, 1])

    @T.program
    def early(F: T.Tensor((2,), "i32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                f = T.view(F, layout=T.FullRow)
                T.wait(f[0], 1)
                T.signal(f[0], dst=(r + 1) % n)

    fails(
        StaleSignalError,
        "T.wait on 'f' for 1 is met by a signal of an earlier launch.*clear the flags",
        early,
        flags,
    )


# --- placements -----------------------------------------------------------------------------------


def test_replicas_that_differ_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Replica)
                T.fill(x, r)

    fails(
        ReplicaMismatchError,
        "copies of 'X' differ at the end: device 1, 2, 3 from device 0.*T.allreduce on the view",
        p,
        f32(4),
        line="x = T.view(X, layout=T.Replica)",
    )


def test_partial_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                x = T.view(X, layout=T.Partial("sum"))
                T.fill(x, r)

    fails(
        PartialError, "'X' still holds partial terms at the end.*T.allreduce or T.reduce_scatter", p, f32(4)
    )


def test_partial_read_as_a_whole() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=256):
            x = T.alloc((4,), "f32")
            with T.Scale("warpgroup") as (wg, _):
                v = T.view(x, layout=T.Partial("sum"))
                T.fill(v, wg)
            T.copy(X, x)

    fails(
        PartialError,
        "'x' holds partial terms, one per warpgroup, and is read as a whole",
        p,
        f32(4),
        line="T.copy(X, x)",
    )


def test_replicas_of_a_tile_that_differ() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1, threads=256):
            x = T.alloc((4,), "f32")
            with T.Scale("warpgroup") as (wg, _):
                T.fill(T.view(x, layout=T.Replica), wg)
            T.copy(X, x)

    fails(
        ReplicaMismatchError,
        r"copies of 'x' differ: element \(0,\) is 0.0 on warpgroup 0 and 1.0 on "
        r"warpgroup 1",
        p,
        f32(4),
    )


# --- the rest -------------------------------------------------------------------------------------


def test_device_assert() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as bx:
            T.device_assert(bx < 1, "too many blocks")

    with pytest.raises(DeviceAssertionError, match=r"assertion failed: too many blocks \(on block 1\)"):
        mt.run(p, f32(4))


def test_assert_statement_in_parallel_code() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                assert X[i] < 3.0, "large"

    with pytest.raises(
        DeviceAssertionError, match=r"assertion failed: large \(iteration \(3,\) of block 0\)"
    ):
        mt.run(p, f32(4))


def test_read_scalar_beyond_its_bound() -> None:
    @T.program
    def p(C: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            n = T.read_scalar(C[0], bound=4)
            for _ in T.serial(n):
                T.barrier()

    fails(RunError, r"T.read_scalar gives 9, outside 0..4", p, np.array([9], np.int32))


def test_uneven_shards_must_be_copied_by_their_own_extent() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32"), Y: T.Tensor((10,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                x, y = T.view(X, layout=T.Shard(0)), T.view(Y, layout=T.Shard(0))
                t = T.alloc((3,), "f32", level="l2")
                T.copy(t[0 : x.shape[0]], x)
                T.copy(y, t[0 : y.shape[0]])

    x, y = f32(10), np.zeros(10, np.float32)
    mt.run(p, x, y)
    np.testing.assert_array_equal(x, y)

    @T.program
    def wrong(X: T.Tensor((10,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device"):
                x = T.view(X, layout=T.Shard(0))
                t = T.alloc((3,), "f32", level="l2")
                T.copy(t, x)

    fails(RunError, r"T.copy: 't' \(3,\) and 'x' \(1,\) have different shapes.*uneven shards", wrong, f32(10))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), r"'p' takes 1 arrays \(X\), 0 were given.*outputs are arguments too"),
        ((np.zeros(5, np.float32),), r"'X' has shape \(5,\), the program wants \(4,\)"),
        ((np.zeros(4, np.float64),), r"'X' is f64, the program wants f32.*astype\(float32\)"),
        (([1.0, 2.0],), "an argument is list, not an array"),
    ],
)
def test_wrong_arguments(arrays: tuple[Any, ...], message: str) -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.clear(X)

    with pytest.raises(ArgumentError, match=message):
        mt.run(p, *arrays)


def test_unknown_schedule() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.clear(X)

    with pytest.raises(RunError, match="there is no schedule 'randm' .*did you mean 'random'"):
        mt.run(p, f32(4), schedule="randm")


def test_checks_can_be_switched_off() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2) as bx:
            x = T.alloc((8,), "f32")
            T.fill(x, bx)
            T.copy(X, x)

    x = f32(8)
    mt.run(p, x, checks=False)
    assert set(x) <= {0.0, 1.0}


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


def test_a_program_is_not_called() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            T.clear(X)

    with pytest.raises(
        ProgramError, match=r"'p' is a tile program, not a Python function .*mt.run\(p, \*arrays\)"
    ):
        p(f32(4))
