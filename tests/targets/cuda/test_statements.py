"""``targets/cuda/statements.py``: what the threads of a team wait for around statements."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.common.errors import CompileError

ROWS, COLUMNS = 8, 5
SHAPE = (2, ROWS, COLUMNS)


def test_a_number_that_decides_what_is_launched_is_not_read_on_the_device() -> None:
    @T.program
    def program(N: T.Tensor((1,), "i32"), X: T.Tensor((4,), "f32")):
        with T.Kernel(device=1, block=2, threads=32), T.Scale("device"):
            for i in T.serial(T.read_scalar(N[0], bound=4)):
                T.fill(X[i : i + 1], 2.0)

    @T.program
    def atomic(N: T.Tensor((1,), "i32"), X: T.Tensor((4,), "f32")):
        with T.Kernel(device=1, block=2, threads=32), T.Scale("device"):
            row = T.atomic_add(N[0], 1, return_prev=True)
            T.fill(X[row : row + 1], 2.0)

    for one in (program, atomic):
        with pytest.raises(CompileError, match="the host would need an element of a tensor here"):
            mt.compile(one, target="cuda", machine="dgx-h100")


def test_jumps_between_kernels_are_jumps_of_the_host() -> None:
    @T.program
    def program(X: T.Tensor((8,), "f32")):
        with T.Kernel(device=1, block=2, threads=32), T.Scale("device"):
            for i in T.serial(4):
                if i == 2:
                    break
                T.fill(X[i : i + 1], 2.0)
            for i in T.serial(4):
                if i == 1:
                    continue
                T.fill(X[4 + i : 5 + i], 3.0)
                if i == 3:
                    return
            T.clear(X)

    x, wanted = np.zeros(8, np.float32), np.zeros(8, np.float32)
    mt.run(program, wanted, machine="dgx-h100")
    assert wanted.tolist() == [2, 2, 0, 0, 3, 0, 3, 3]
    mt.compile(program, target="cuda", machine="dgx-h100")(x)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize("turns", [0, 1, 2])
@pytest.mark.parametrize("last", [-1, 0])
def test_copies_before_a_loop_are_waited_for_behind_it_whatever_its_turns(turns: int, last: int) -> None:
    """``last``: the turn that a ``break`` ends, -1 for none."""

    @T.program
    def program(
        A: T.Tensor(SHAPE, "f32"), B: T.Tensor(SHAPE, "f32"), N: T.Tensor((2,), "i32"),
        X: T.Tensor(SHAPE, "f32"), Y: T.Tensor(SHAPE, "f32"),
    ):  # fmt: skip
        with T.Kernel(block=1, threads=64):
            n, end = T.read_scalar(N[0], bound=2), T.read_scalar(N[1], bound=9)
            with T.Scale("warp") as (warp, warps):
                a = T.alloc((ROWS, COLUMNS), "f32", level="l1")
                b = T.alloc((ROWS, COLUMNS), "f32", level="l1")
                T.copy(a, A[warp, 0, 0])
                T.copy(b, B[warp, 0, 0])
                for k in T.serial(n):
                    if k == end:
                        break
                    a[k, 1] = a[k, 1] + 0.5
                for i, j in T.Parallel(ROWS, COLUMNS):
                    Y[warp, i, j] = b[ROWS - 1 - i, j]
                T.copy(X[warp, 0, 0], a)

    a, b = np.random.default_rng(0).random((2, *SHAPE), dtype=np.float32)
    x, y = np.zeros_like(a), np.zeros_like(b)
    k = mt.compile(program, target="cuda")
    assert "cp_async" in k.source
    k(a, b, np.array([turns, 9 if last < 0 else last], np.int32), x, y)
    wanted = a.copy()
    wanted[:, : turns if last < 0 else min(turns, last), 1] += 0.5
    np.testing.assert_array_equal(x, wanted)
    np.testing.assert_array_equal(y, b[:, ::-1])
