"""``targets/interpret/resolve.py``: find where a region lies for a unit."""

import numpy as np
from tests.targets.interpret.shared import f32, fails

import megatile.language as T
from megatile.targets.interpret.errors import OutOfBoundsError, RunError


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


def test_read_scalar_beyond_its_bound() -> None:
    @T.program
    def p(C: T.Tensor((1,), "i32")):
        with T.Kernel(block=1):
            n = T.read_scalar(C[0], bound=4)
            for _ in T.serial(n):
                T.barrier()

    fails(RunError, r"T.read_scalar gives 9, outside 0..4", p, np.array([9], np.int32))


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
