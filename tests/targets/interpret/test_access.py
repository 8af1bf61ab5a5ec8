"""``targets/interpret/access.py``: reading and writing regions, with every check on the way."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile.language as T
from megatile.targets.interpret.errors import DataRaceError, ReplicaMismatchError, UninitialisedReadError


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


def test_units_that_write_one_element_in_one_statement_are_pointed_to_atomics() -> None:
    @T.program
    def split_k(X: T.Tensor((8,), "f32"), Y: T.Tensor((4,), "f32")):
        with T.Kernel(block=2) as bk:
            c = T.alloc((4,), "f32")
            T.copy(c, X[bk * 4])
            T.copy(Y, c)

    fails(DataRaceError, r"block 0 at line \d+.*in one statement: use T.atomic_add", split_k, f32(8), f32(4))


def test_updates_by_several_units_advise_atomics() -> None:
    @T.program
    def element(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(block=4) as b:
            for j in T.Parallel(8):
                Y[j] = Y[j] + X[b, j]

    @T.program
    def tile(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(block=4) as b:
            y = T.alloc((8,), "f32")
            T.copy(y, Y[0])
            for j in T.Parallel(8):
                y[j] = T.max(y[j], X[b, j])
            T.copy(Y[0], y)

    @T.program
    def other(X: T.Tensor((4, 8), "f32"), Y: T.Tensor((8,), "f32")):
        with T.Kernel(block=4) as b:
            for j in T.Parallel(1):
                Y[b + j] = Y[b + 1 + j] + X[b, j]

    for p in (element, tile):
        fails(DataRaceError, "each unit reads an element, changes it.*T.atomic_add", p, f32(4, 8), f32(8))
    fails(DataRaceError, "T.barrier", other, f32(4, 8), f32(8))
