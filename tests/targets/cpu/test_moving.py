"""``targets/cpu/moving.py``: copies and fills of boxes, row by row."""

import numpy as np
import pytest

import megatile as mt
import megatile.language as T


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_round_as_numpy_does(dtype: str) -> None:
    from megatile.core.dtypes import numpy_dtype

    @T.program
    def kernel(A: T.Tensor((4096,), "f32"), B: T.Tensor((4096,), dtype), C: T.Tensor((4096,), "f32")):
        with T.Kernel(block=1):
            T.copy(B[0:4096], A[0:4096])
            T.copy(C[0:4096], B[0:4096])

    rng = np.random.default_rng(0)
    a = rng.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    a[::2] = (10 ** rng.uniform(-9, 6, 2048) * rng.choice([-1, 1], 2048)).astype(np.float32)
    b, c = np.zeros(4096, numpy_dtype(dtype)), np.zeros(4096, np.float32)
    mt.compile(kernel, threads=1)(a, b, c)
    with np.errstate(all="ignore"):
        wanted = a.astype(numpy_dtype(dtype)).astype(np.float32)
    np.testing.assert_array_equal(c, wanted)


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_tiles_hold_what_tensors_of_their_type_hold(dtype: str) -> None:
    """Narrow floats are f32 in a tile, so a copy converts each; the others are moved as they are."""
    from megatile.core.dtypes import numpy_dtype

    @T.program
    def kernel(A: T.Tensor((50,), dtype), B: T.Tensor((50,), dtype)):
        with T.Kernel(block=4):
            with T.Scale("block") as (rank, _):
                x = T.alloc((16,), dtype)
                y = T.alloc((16,), dtype)
                T.copy(x, A[rank * 16])
                T.copy(y, x)
                T.copy(B[rank * 16], y)

    a = np.arange(-25, 25).astype(numpy_dtype(dtype))
    b = np.zeros_like(a)
    mt.compile(kernel, threads=1)(a, b)
    np.testing.assert_array_equal(b.astype(float), a.astype(float))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i32"])
def test_atomics_on_tensors_of_every_width(dtype: str) -> None:
    from megatile.core.dtypes import numpy_dtype

    @T.program
    def kernel(X: T.Tensor((48,), dtype), V: T.Tensor((2,), dtype)):
        with T.Kernel(block=3):
            with T.Scale("block") as (rank, _):
                for i in T.Parallel(16):
                    T.atomic_max(V[0], X[rank * 16 + i])
                    T.atomic_add(V[1], X[rank * 16 + i])

    x = np.arange(-20, 28).astype(numpy_dtype(dtype))
    v = np.zeros(2, numpy_dtype(dtype))
    mt.compile(kernel, threads=2)(x, v)
    assert v.astype(float).tolist() == [27, sum(range(-20, 28))]
