"""``targets/cpu/products.py``: loops of products over tiles of two tensors, as one long product."""

import numpy as np
from tests.targets.cpu.passes_cases import check, random

import megatile.language as T


def test_products_of_many_shapes() -> None:
    """Loops of products as one: leading dimensions, results used before they are stored, odd edges."""

    def batched(B, M, N, K, bM, bN, bK, act):
        @T.program
        def kernel(
            A: T.Tensor((B, M, K), "f32"), W: T.Tensor((B, K, N), "f32"), C: T.Tensor((B, M, N), "f32")
        ):
            with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM), B)) as (bx, by, bz):
                a = T.alloc((bM, bK), "f32")
                b = T.alloc((bK, bN), "f32")
                c = T.alloc((bM, bN), "f32")
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, bK), num_stages=2):
                    T.copy(a, A[bz, by * bM, k * bK])
                    T.copy(b, W[bz, k * bK, bx * bN])
                    T.gemm(a, b, c)
                if act:
                    for i, j in T.Parallel(bM, bN):
                        c[i, j] = T.tanh(c[i, j])
                T.copy(C[bz, by * bM, bx * bN], c)

        return kernel

    for B, M, N, K, bM, bN, bK, act in [
        (1, 64, 64, 64, 32, 32, 16, False),
        (2, 50, 70, 33, 32, 64, 16, True),
        (2, 45, 33, 20, 16, 32, 8, False),
    ]:
        args = random(B, M, K), random(B, K, N, seed=1), np.zeros((B, M, N), np.float32)
        source = check(batched(B, M, N, K, bM, bN, bK, act), *args, rtol=1e-4).source
        assert "pack_W" in source
