"""``targets/common/scalars.py``: elementwise code, one iteration at a time."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.targets.interpret.errors import DeviceAssertionError, OutOfBoundsError, RunError


def test_failures_name_the_line() -> None:
    @T.program
    def gather(A: T.Tensor((8,), "f32"), I: T.Tensor((4,), "i32"), B: T.Tensor((4,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(4):
                B[i] = A[I[i]]
            T.device_assert(B[0] < 10.0, "small")
            n = T.read_scalar(I[0], bound=7)
            for k in T.serial(n):
                B[0] = B[0] + 100 // (I[3] - k)

    k = mt.compile(gather, threads=1)
    a, b = np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    k(a, np.array([0, 1, 2, 7], np.int32), b)
    np.testing.assert_array_equal(b, [0, 1, 2, 7])
    with pytest.raises(OutOfBoundsError, match=r"test_scalars.py:\d+: 'A\[8\]' is out of bounds"):
        k(a, np.array([0, 1, 8, 3], np.int32), b)
    with pytest.raises(DeviceAssertionError, match="small"):
        k(a + 10, np.array([0, 1, 2, 3], np.int32), b)
    with pytest.raises(RunError, match="division by zero"):
        k(a, np.array([1, 1, 2, 0], np.int32), b)


@pytest.mark.parametrize("dtype", ["i8", "i16"])
def test_narrow_integers_wrap_before_they_are_used_further(dtype: str) -> None:
    @T.program
    def kernel(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((64,), "f32")):
        with T.Kernel(block=1):
            for i in T.Parallel(64):
                C[i] = T.cast((A[i] + B[i]) >> 1, "f32") + T.cast(A[i] * B[i], "f32")

    a = np.arange(96, 160).astype({"i8": "i1", "u8": "u1", "i16": "i2", "i32": "i4"}[dtype])
    b = a[::-1].copy()
    wanted, got = np.zeros(64, np.float32), np.zeros(64, np.float32)
    mt.run(kernel, a, b, wanted)
    mt.compile(kernel, threads=1)(a, b, got)
    np.testing.assert_array_equal(got, wanted)
