"""GEMM, a tile per block.

A matrix product in tiles: two copies in, a tile product, a loop over K that overlaps copies with
arithmetic.

* The destination comes first: `T.copy(to, source)`. Copies convert dtypes; here C is f32 and the inputs are
  f16.
* `level="l1"` is memory shared by a block, `level="l0"` its registers. The names come from the machine; the
  size is checked while building.
* `T.gemm(a, b, c)` adds to `c` in f32. Without `T.clear(c)` the run stops with "'c' is read before it is
  written".
* `T.Pipelined(n, num_stages=3)` means the same as `T.serial(n)`; targets run the copies ahead. If a copy
  would then read what the loop writes, the program is refused.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm(
    M: int, N: int, K: int, bM: int = 64, bN: int = 64, bK: int = 32, dtype: str = "f16", stages: int = 3
):
    @T.program
    def kernel(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=128) as (bx, by):
            a = T.alloc((bM, bK), dtype, level="l1")
            b = T.alloc((bK, bN), dtype, level="l1")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(a, A[by * bM, k * bK])
                T.copy(b, B[k * bK, bx * bN])
                T.gemm(a, b, c)
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    M, N, K = 200, 136, 96
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K)).astype(np.float16), rng.standard_normal((K, N)).astype(np.float16)
    c = np.empty((M, N), np.float32)
    mt.run(gemm(M, N, K), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=1e-4, atol=1e-4)
    print(f"{M}x{N}x{K} in f16, accumulated in f32, on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
