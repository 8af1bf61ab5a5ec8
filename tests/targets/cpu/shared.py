"""What several files of tests/targets/cpu share."""

import numpy as np

import megatile.language as T


def gemm(M, N, K, dtype="f32", out="f32", bM=64, bN=64, bK=32, ta=False, tb=False):
    @T.program
    def kernel(
        A: T.Tensor((K, M) if ta else (M, K), dtype), B: T.Tensor((N, K) if tb else (K, N), dtype),
        C: T.Tensor((M, N), out),
    ):  # fmt: skip
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bK, bM) if ta else (bM, bK), dtype, level="l1")
            b = T.alloc((bN, bK) if tb else (bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), "i32" if dtype[0] in "iu" else "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                if ta:
                    T.copy(a, A[k * bK, by * bM])
                else:
                    T.copy(a, A[by * bM, k * bK])
                if tb:
                    T.copy(b, B[bx * bN, k * bK])
                else:
                    T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c, transpose_A=ta, transpose_B=tb)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def random(shape, dtype, seed=0):
    from megatile.core.dtypes import numpy_dtype

    rng = np.random.default_rng(seed)
    if dtype[0] in "iu":
        return rng.integers(-9 if dtype[0] == "i" else 0, 9, shape).astype(numpy_dtype(dtype))
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))
