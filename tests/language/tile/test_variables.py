"""``language/tile/variables.py``: what Python variables of a kernel are while it is read."""

import numpy as np
import pytest
from tests.language.tile.shared import zeros

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError


def i32(*shape: int) -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


def test_branches_and_merged_variables() -> None:
    @T.program
    def p(X: T.Tensor((6,), "i32")):
        with T.Kernel(block=6) as b:
            if b < 2:
                v = b * 10
            elif b < 4:
                v = b * 100
            else:
                v = 7
            X[b] = v

    x = zeros(6, dtype=np.int32)
    mt.run(p, x)
    np.testing.assert_array_equal(x, [0, 10, 200, 300, 7, 7])


def test_carried_scalars() -> None:
    @T.program
    def p(X: T.Tensor((8,), "i32"), Y: T.Tensor((2,), "i32")):
        with T.Kernel(block=1):
            total, peer = 0, 3
            for k in T.serial(8):
                total = total + X[k]
                peer = (peer + 1) % 5
            Y[0] = total
            Y[1] = peer

    x, y = i32(8), zeros(2, dtype=np.int32)
    mt.run(p, x, y)
    np.testing.assert_array_equal(y, [28, (3 + 8) % 5])


def test_names_of_ranks_are_used_again() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "i32")):
        with T.Kernel(block=1, threads=256) as b:
            t = T.alloc((8,), "i32", level="l1")
            with T.Scale("warp") as (w, nw):
                t[w] = w
            for _k in T.serial(3):
                with T.Scale("warp") as (w, nw):
                    t[w] = t[w] + 1
            if b == 0:
                with T.Scale("warp") as (w, nw):
                    t[w] = t[w] + nw
            else:
                with T.Scale("warpgroup") as (w, nw):
                    t[w] = t[w] + nw
            with T.Scale("warp") as (w, nw):
                t[w] = t[w] * 10
            T.copy(A, t)

    out = np.zeros(8, np.int32)
    mt.run(kernel, out)
    np.testing.assert_array_equal(out, (np.arange(8) + 11) * 10)


def test_a_variable_of_a_loop_after_it() -> None:
    @T.program
    def kernel(A: T.Tensor((8,), "i32")):
        with T.Kernel(block=1):
            for i in T.serial(4):
                A[i] = i
            A[5] = i

    with pytest.raises(MegatileError, match="(?s)'i' changes in a loop or branch.*A.5. = i"):
        mt.run(kernel, np.zeros(8, np.int32))
