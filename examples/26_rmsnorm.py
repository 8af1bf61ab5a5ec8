"""RMSNorm.

A reduction over rows and a weight per column, in bf16 with f32 inside.

* A copy from a bf16 tensor into an f32 tile converts; the copy back rounds once.
* `factor[i] / N + eps` mixes a tile's element with Python numbers: constants take the tile's dtype.
* `W` is used whole: a tensor needs no index when its shape fits.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def rmsnorm(M: int, N: int, eps: float = 1e-5, bM: int = 16):
    @T.program
    def kernel(X: T.Tensor((M, N), "bf16"), W: T.Tensor((N,), "bf16"), Y: T.Tensor((M, N), "bf16")):
        with T.Kernel(block=T.ceildiv(M, bM), threads=128) as bx:
            x = T.alloc((bM, N), "f32")
            square = T.alloc((bM, N), "f32")
            weight = T.alloc((N,), "f32")
            factor = T.alloc((bM,), "f32")
            T.copy(x, X[bx * bM, 0])
            T.copy(weight, W)
            for i, j in T.Parallel(bM, N):
                square[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(square, factor, dim=1)
            for i in T.Parallel(bM):
                factor[i] = T.rsqrt(factor[i] / N + eps)
            for i, j in T.Parallel(bM, N):
                x[i, j] = x[i, j] * factor[i] * weight[j]
            T.copy(Y[bx * bM, 0], x)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    import ml_dtypes

    M, N = 40, 96
    rng = np.random.default_rng(0)
    x = rng.standard_normal((M, N)).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal(N).astype(ml_dtypes.bfloat16)
    y = np.zeros_like(x)
    mt.run(rmsnorm(M, N), x, w, y, machine=machine, **options)
    wide = x.astype(np.float32)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * w.astype(np.float32)
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=1e-2, atol=1e-2)
    print(f"RMSNorm of {M}x{N} bf16 on {machine}: equal to NumPy within bf16")


if __name__ == "__main__":
    main()
