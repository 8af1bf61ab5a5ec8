"""Programs on every machine that comes with the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import megatile as mt
import megatile.language as T

M, N, K = 64, 48, 32


def product(devices: int) -> Any:
    """Every device multiplies its rows of A, block by block, and all sum up their results."""
    rows = M // devices

    @T.program
    def kernel(A: T.Tensor((M, K), "f16"), B: T.Tensor((K, N), "f16"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // 16, rows // 16), threads=64) as (bx, by), T.Scale("device"):
            a_, c_ = T.view(A, layout=T.FullRow), T.view(C, layout=T.FullRow)
            with T.Scale("block"):
                a = T.alloc((16, K), "f16", level="l1")
                b = T.alloc((K, 16), "f16", level="l1")
                c = T.alloc((16, 16), "f32", level="l0")
                T.copy(a, a_[by * 16, 0])
                T.copy(b, B[0, bx * 16])
                T.clear(c)
                T.gemm(a, b, c)
                T.copy(c_[by * 16, bx * 16], c)
            T.allreduce(c_)

    return kernel


@pytest.mark.parametrize("name", mt.machine_names())
def test_a_product_and_a_sum(name: str) -> None:
    devices = min(2, mt.machine(name).count("device"))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype("f2") for shape in ((M, K), (K, N)))
    lowered = mt.lower(product(devices), machine=name)
    mt.check(lowered)
    result = mt.simulate(lowered, a, b, np.zeros((M, N), "f4"))
    whole = (a.astype("f4") @ b.astype("f4")).reshape(devices, M // devices, N)
    np.testing.assert_array_equal(result.outputs["C"], np.concatenate([whole.sum(0)] * devices))
    assert result.time_ns > 0
