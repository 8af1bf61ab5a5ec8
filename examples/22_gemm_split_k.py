"""Split-K inside a block.

The two warp groups of TileScale's README: each has half of the inner dimension, both reduce at the end.

* `T.view(a, layout=T.FullCol)` is this warp group's part of the tile: its columns. `T.Replica` gives
  everyone a copy of its own.
* `T.copy(my_a, A[by * bM, k * bK])`: the anchor is the place of the *whole* tile; the view adds its own
  origin, so the two groups load different halves.
* The all-reduce stands after the loop. Inside, it would sum what was already summed; the build warns of
  that.
* Back at block scale, `T.copy(C[...], c)` reads a replica from outside: the copies must agree, which is
  checked.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm_split_k(M: int, N: int, K: int, bM: int = 64, bN: int = 64, bK: int = 32):
    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=256) as (bx, by):
            a = T.alloc((bM, bK), "f32", level="l0")
            b = T.alloc((bK, bN), "f32", level="l0")
            c = T.alloc((bM, bN), "f32", level="l0")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=3):
                with T.Scale("warpgroup"):
                    my_a = T.view(a, layout=T.FullCol)
                    my_b = T.view(b, layout=T.FullRow)
                    my_c = T.view(c, layout=T.Replica)
                    T.copy(my_a, A[by * bM, k * bK])
                    T.copy(my_b, B[k * bK, bx * bN])
                    T.gemm(my_a, my_b, my_c)
            with T.Scale("warpgroup"):
                T.allreduce(T.view(c))
            T.copy(C[by * bM, bx * bN], c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    M, N, K = 128, 192, 100
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(gemm_split_k(M, N, K), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{M}x{N}x{K} split over the warp groups of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
