"""Every check of the interpreter: it finds the mistake, at the user's line, and says what to try."""

import numpy as np
import pytest
from tests.targets.interpret.shared import f32, fails

import megatile as mt
import megatile.language as T
from megatile.language.tile.errors import ProgramError
from megatile.targets.interpret.errors import (
    DataRaceError,
    DeviceAssertionError,
    PartialError,
    ReplicaMismatchError,
    RunError,
    StaleSignalError,
    UninitialisedReadError,
)

# --- data races -----------------------------------------------------------------------------------


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


# --- deadlock and participation -------------------------------------------------------------------


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


# --- the rest -------------------------------------------------------------------------------------


def test_device_assert() -> None:
    @T.program
    def p(X: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as bx:
            T.device_assert(bx < 1, "too many blocks")

    with pytest.raises(DeviceAssertionError, match=r"assertion failed: too many blocks \(on block 1\)"):
        mt.run(p, f32(4))


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


# --- what only a run can tell ---------------------------------------------------------------------


def test_race_says_what_would_order_it() -> None:
    @T.program
    def p(X: T.Tensor((8,), "f32")):
        with T.Kernel(block=2) as bx:
            T.fill(X[bx], bx)
            T.fill(X[1 - bx], bx)

    fails(DataRaceError, r"block \d at line \d+, with nothing that orders the two.*T.barrier", p, f32(8))


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
