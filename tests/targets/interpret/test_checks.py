"""Every check of the interpreter: it finds the mistake, at the user's line, and says what to try."""

import traceback
import warnings
from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError, ProgramWarning
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
    assert len(frames) == 2 and frames[1].name == "outermost"


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


@pytest.mark.parametrize(
    ("schedule", "seed"), [("round-robin", 0), ("adversarial", 0), *(("random", seed) for seed in range(4))]
)
@pytest.mark.parametrize("kinds", ["read and write", "write and write"])
def test_a_race_is_found_by_every_schedule(kinds: str, schedule: str, seed: int) -> None:
    """Also when one of the units has finished before the other begins."""

    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as b:
            if b == 0:
                T.fill(X[0:2], 1)
            elif kinds == "read and write":
                T.copy(X[2:4], X[0:2])
            else:
                T.fill(X[1:3], 2)

    fails(DataRaceError, "data race on 'X'", p, f32(4), schedule=schedule, seed=seed)


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
        strict_bounds=True,
    )


def test_anchor_entirely_outside() -> None:
    @T.program
    def p(X: T.Tensor((10,), "f32"), Y: T.Tensor((32,), "f32")):
        with T.Kernel(block=4) as bx:
            y = T.alloc((8,), "f32")
            T.copy(y, X[bx * 8])
            T.copy(Y[bx * 8], y)

    message = r"'X\[16:24\]' lies entirely outside.*the loop bound"
    fails(OutOfBoundsError, message, p, f32(10), f32(32), strict_bounds=True)


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


def test_only_units_that_do_not_come_are_named() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4):
            with T.Scale("device") as (r, _):
                if r != 2:
                    T.barrier()

    fails(DeadlockError, "T.barrier is not reached by device 2; device", p, f32(4), line="T.barrier()")


def test_wait_without_signal() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=2):
            with T.Scale("device"):
                flag = T.alloc((1,), "i32", level="l2")
                T.wait(flag, 1)

    fails(
        DeadlockError,
        r"deadlock: device 0 waits at T.wait \(line \d+\) until 'flag' is 1, and it is 0; device 1 waits at "
        r"T.wait.*'flag' is signalled nowhere.*needs a signal",
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
    stale = "T.wait on 'f' for 1 is met by signals of an earlier launch: it began at 1.*clear the flags"
    for schedule in ("round-robin", "random", "adversarial"):  # also where this launch has signalled already
        fails(StaleSignalError, stale, p, flags.copy(), schedule=schedule)

    @T.program
    def counts_on(F: T.Tensor((2,), "i32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                f = T.view(F, layout=T.FullRow)
                T.signal(f[0], dst=(r + 1) % n)
                T.wait(f[0], 2)

    again = flags.copy()
    mt.run(counts_on, again)
    np.testing.assert_array_equal(again, [2, 2])

    @T.program
    def early(F: T.Tensor((2,), "i32")):
        with T.Kernel(device=2):
            with T.Scale("device") as (r, n):
                f = T.view(F, layout=T.FullRow)
                T.wait(f[0], 1)
                T.signal(f[0], dst=(r + 1) % n)

    fails(StaleSignalError, stale, early, flags)


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


def test_copies_along_one_axis_differ_at_the_end() -> None:
    @T.program
    def p(X: T.Tensor((4, 4), "f32")):
        with T.Kernel(device=(2, 2)), T.Scale("device") as rank:
            T.fill(T.view(X, layout=(T.Shard(0), T.Replica)), rank.coords[1])

    fails(ReplicaMismatchError, "the copies of 'X' differ.*along that axis", p, f32(4, 4), line="T.view(X")


# --- collectives of parts that do not fit together ------------------------------------------------


def test_allreduce_of_uneven_shards() -> None:
    @T.program
    def p(X: T.Tensor((5, 3), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.allreduce(T.view(X, layout=T.FullRow))

    fails(
        RunError,
        r"T.allreduce: device 2 has the shape \(1, 3\), device 0 has \(2, 3\).*pad the uneven shards",
        p,
        f32(5, 3),
        line="T.allreduce(T.view(X",
    )


def test_allgather_of_too_few_parts() -> None:
    @T.program
    def p(X: T.Tensor((5,), "f32"), Y: T.Tensor((6,), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.allgather(T.view(Y, layout=T.Replica), T.view(X, layout=T.FullRow))

    fails(
        RunError,
        r"T.allgather: the parts make \(5,\), the result has \(6,\) on device 0",
        p,
        f32(5),
        f32(6),
        line="T.allgather(",
    )


def test_broadcast_from_a_root_that_is_not_there() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(device=4), T.Scale("device"):
            T.broadcast(T.view(X, layout=T.FullRow), root=4)

    fails(RunError, "T.broadcast: root 4 of 4 units.*from 0 to 3", p, f32(4), line="T.broadcast(")


def test_all_to_all_of_a_length_known_late() -> None:
    @T.program
    def p(X: T.Tensor((6,), "f32"), N: T.Tensor((1,), "i32")):
        with T.Kernel(device=4), T.Scale("device"):
            a, b = T.alloc((8,), "f32", level="l2"), T.alloc((8,), "f32", level="l2")
            T.clear(a)
            n = T.read_scalar(T.view(N, layout=T.Replica)[0], bound=8)
            T.all_to_all(b[0:n], a[0:n])

    fails(
        RunError,
        "T.all_to_all: 6 elements of dimension 0 do not divide over 4 units",
        p,
        f32(6),
        np.array([6], np.int32),
        line="T.all_to_all(",
    )


# --- what only a run can tell ---------------------------------------------------------------------


def test_race_says_what_would_order_it() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2) as bx:
            T.fill(X[bx], bx)
            T.fill(X[1 - bx], bx)

    fails(DataRaceError, r"block \d at line \d+, with nothing that orders the two.*T.barrier", p, f32(8))


def test_units_that_write_one_element_in_one_statement_are_told_of_atomics() -> None:
    @T.program
    def split_k(X: T.Tensor((8,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as bk:
            c = T.alloc((4,), "f32")
            T.copy(c, X[bk * 4])
            T.copy(Y, c)

    fails(DataRaceError, r"block 0 at line \d+.*in one statement: use T.atomic_add", split_k, f32(8), f32(4))


def test_units_that_hold_the_same_part() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(device=(2, 2)), T.Scale("device") as r:
            T.fill(T.view(X, layout=(T.Shard(0), T.Replica)), r.coords[1])

    fails(
        ReplicaMismatchError,
        "the copies of 'X' differ: device 2 has 1.0 where another has 0.0.*a reduction along that axis",
        p,
        f32(8),
        line="T.view(X",
    )


def test_different_roots() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(device=2), T.Scale("device") as (r, n):
            x = T.alloc((4,), "f32", level="l2")
            T.clear(x)
            T.broadcast(x, root=r)

    fails(RunError, r"T.broadcast: units name different roots \[0, 1\]", p, f32(8), line="T.broadcast(")


def test_negative_extents() -> None:
    @T.program
    def parallel(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1) as b:
            for i in T.Parallel(b - 1):
                X[i] = 0.0

    @T.program
    def region(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1) as b:
            x = T.alloc((8,), "f32")
            T.clear(x)
            T.copy(X[0 : b - 1], x[0 : b - 1])

    fails(RunError, r"T.Parallel over extents \(-1,\)", parallel, f32(8), line="for i in")
    fails(RunError, r"a region of '\w+' has extent -1.*check its bounds", region, f32(8), line="T.copy(")


def test_a_flag_that_does_not_exist() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=4), T.Scale("block") as (r, n):
            flags = T.alloc((2,), "i32")
            T.signal(flags[r], dst=r)
            T.wait(flags[r], 1)

    fails(RunError, r"flag 2 does not exist: 'flags' has 2 in dimension 0", p, f32(8), line="T.signal(")


def test_a_loop_that_does_not_advance() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=1) as b:
            for _ in T.serial(0, 4, b):
                T.clear(X)

    fails(RunError, "a loop with step 0 never ends", p, f32(8), line="for _ in")


def test_partial_terms_reduced_elsewhere() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=2), T.Scale("device") as (r, n):
            x, y = T.view(X, layout=T.Partial("sum")), T.view(Y, layout=T.FullRow)
            T.fill(x, r + 1)
            T.reduce_scatter(y, x)

    fails(
        PartialError,
        "'X' still holds partial terms at the end.*its sum went into another tile: keep the terms in a tile",
        p,
        f32(8),
        f32(8),
        line="T.view(X",
    )


def test_views_of_views_with_copies_on_one_axis() -> None:
    @T.program
    def p(X: T.Tensor((8, 8), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(device=2, block=(2, 2)), T.Scale("device") as (d, _):
            rows, sums = T.view(X, layout=T.FullRow), T.view(Y, layout=T.FullRow)
            with T.Scale("block") as r:
                T.fill(T.view(rows, layout=(T.Shard(1), T.Replica)), r.coords[0] + 10 * d)
            T.reduce_sum(rows, sums, dim=1)

    x, y = f32(8, 8), f32(8)
    mt.run(p, x, y)
    expected = np.add.outer(np.repeat([0, 10], 4), np.repeat([0, 1], 4))
    np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(y, expected.sum(axis=1))


# --- looking --------------------------------------------------------------------------------------


def looked_at() -> Any:
    @T.program
    def p(X: T.Tensor((8,), "f32"), N: T.Tensor((1,), "i32")):
        with T.Kernel(block=2, threads=256) as bx:
            x = T.alloc((4,), "f32")
            n = T.read_scalar(N[0], bound=4)
            for k in T.serial(2):
                half = bx * 2 + k
                T.fill(x, half)
                with T.Scale("warpgroup") as (w, size):
                    T.breakpoint(unit=1)
            T.copy(X[bx * 4], x)

    return p


def test_a_breakpoint_shows_all_scalars() -> None:
    stops: list[Any] = []
    arrays = f32(8), np.full(1, 3, np.int32)
    mt.run(looked_at(), *arrays, on_breakpoint=stops.append)
    assert {stop.unit for stop in stops} == {"block 0, warpgroup 1", "block 1, warpgroup 1"}
    last = stops[-1].vars
    assert last == {"k": 1, "n": 3, "half": 3, "bx": 1, "w": 1, "size": 2, "scalar": 3} or last.items() >= {
        "k": 1, "n": 3, "half": 3, "bx": 1, "w": 1, "size": 2,
    }.items()  # fmt: skip
    np.testing.assert_array_equal(stops[-1]["x"], [3, 3, 3, 3])
    with pytest.raises(RunError, match="there is no tile 'y'.*tiles there are"):
        stops[-1]["y"]
    lines: list[str] = []
    mt.run(looked_at(), *arrays, output=lines.append)
    assert len(lines) == 4
    assert "[block 1, warpgroup 1] breakpoint at line" in lines[-1] and "half = 3" in lines[-1]


def test_who_wrote_tiles_and_scalars() -> None:
    arrays = f32(8), np.full(1, 3, np.int32)
    result = mt.run(looked_at(), *arrays, record=True, output=lambda text: None)
    tensor, tile = result.last_write("X", 6), result.last_write("x", 2, unit=0)
    assert tensor is not None and tensor.unit == "block 1" and tensor.statement.startswith("copy(X[")
    assert tile is not None and tile.unit == "block 0" and "T.fill(x, half)" in tile.place.snippet
    assert tile.step < tensor.step
    loop = result.last_write("k", unit=1)
    assert loop is not None and loop.value == 1 and "for k in serial" in str(loop)
    for name, message in (("Z", "nothing called 'Z' was written"), ("xx", "did you mean 'x'")):
        with pytest.raises(ArgumentError, match=message):
            result.last_write(name, 0)
    with pytest.raises(ArgumentError, match="no unit 7 has a tile 'x'.*2 units, from 0"):
        result.last_write("x", 0, unit=7)
    with pytest.raises(ArgumentError, match=r"'x' has 1 dimensions, 0 indices were given.*shape is \(4,\)"):
        result.last_write("x")
    with pytest.raises(ArgumentError, match="'X' has no copy 1"):
        result.last_write("X", 0, copy=1)
    with pytest.raises(ArgumentError, match="this run was not recorded.*record=True"):
        mt.run(looked_at(), *arrays, output=lambda text: None).last_write("X", 0)


def test_one_array_given_twice_is_a_warning_where_it_is_written() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32"), Z: T.Tensor((4,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                Y[i] = X[i] + Z[3 - i]

    both, even = f32(8), f32(8)
    with pytest.warns(
        ProgramWarning, match=r"'X' and 'Y' of 'p' share memory, and one of each is written"
    ) as seen:
        mt.run(p, both[:4], both[4:], both[:4])
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mt.run(p, even[::2], even[::2], even[1::2])
