"""``targets/cpu/forwarding.py``: tiles that elementwise code would only pass on."""

import numpy as np
from tests.targets.cpu.passes_cases import check, random

import megatile.language as T


def test_a_tile_that_is_read_later_is_kept() -> None:
    @T.program
    def kernel(X: T.Tensor((8, 32), "bf16"), Y: T.Tensor((8, 32), "f32"), Z: T.Tensor((8, 32), "f32")):
        with T.Kernel(block=2) as bx:
            x = T.alloc((4, 32), "f32")
            y = T.alloc((4, 32), "f32")
            T.copy(x, X[bx * 4, 0])
            for i, j in T.Parallel(4, 32):
                y[i, j] = x[i, j] + 1.0
            T.copy(Y[bx * 4, 0], y)
            for i, j in T.Parallel(4, 32):
                x[i, j] = x[i, j] * y[i, j]
            T.copy(Z[bx * 4, 0], x)

    import ml_dtypes

    x = random(8, 32).astype(ml_dtypes.bfloat16)
    check(kernel, x, np.zeros((8, 32), np.float32), np.zeros((8, 32), np.float32))
