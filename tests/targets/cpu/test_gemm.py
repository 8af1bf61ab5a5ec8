"""``targets/cpu/gemm.py``: matrix products."""

import numpy as np
import pytest
from tests.targets.cpu.shared import gemm, random

import megatile as mt


@pytest.mark.parametrize(
    ("size", "dtype", "out", "tile", "flips"),
    [
        ((130, 70, 45), "f32", "f32", (64, 64, 32), (False, False)),
        ((1, 1, 1), "f32", "f32", (64, 64, 32), (False, False)),
        ((100, 90, 33), "bf16", "bf16", (32, 48, 16), (False, True)),
        ((100, 90, 33), "f16", "f16", (48, 40, 16), (True, False)),
        ((64, 96, 32), "f8e4m3", "f32", (64, 32, 32), (True, True)),
        ((40, 40, 40), "f8e5m2", "f16", (13, 17, 5), (False, False)),
        ((33, 20, 50), "i8", "i32", (16, 16, 16), (False, True)),
    ],
)
def test_gemm_equals_the_interpreter(size, dtype, out, tile, flips) -> None:
    M, N, K = size
    program = gemm(M, N, K, dtype, out, *tile, *flips)
    a = random((K, M) if flips[0] else (M, K), dtype)
    b = random((N, K) if flips[1] else (K, N), dtype, 1)
    wanted, got = random((M, N), out), random((M, N), out)
    mt.run(program, a, b, wanted)
    mt.compile(program, threads=2)(a, b, got)
    bound = {"f16": 2e-3, "bf16": 1.6e-2}.get(out, 1e-5)
    np.testing.assert_allclose(got.astype("f8"), wanted.astype("f8"), rtol=bound, atol=bound)
