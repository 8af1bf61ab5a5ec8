"""What files that test passes share."""

import numpy as np

import megatile as mt
import megatile.language as T


def check(program, *arrays, rtol=1e-5, threads=2, machine="cpu"):
    wanted, got = [a.copy() for a in arrays], [a.copy() for a in arrays]
    mt.run(program, *wanted, machine=machine)
    kernel = mt.compile(program, threads=threads, machine=machine)
    kernel(*got)
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=rtol, atol=rtol)
    return kernel


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(M, N, bM, blocks=None):
    @T.program
    def kernel(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32")):
        with T.Kernel(block=blocks or T.ceildiv(M, bM)) as bx:
            x = T.alloc((bM, N), "f32")
            top = T.alloc((bM,), "f32")
            total = T.alloc((bM,), "f32")
            T.copy(x, X[bx * bM, 0])
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(bM, N):
                x[i, j] = x[i, j] * (1.0 / total[i])
            T.copy(Y[bx * bM, 0], x)

    return kernel
