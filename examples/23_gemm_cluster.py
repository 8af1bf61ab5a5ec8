"""GEMM at cluster scale.

One `T.gemm` for tiles that the blocks of a cluster hold together.

* Scales nest: `with T.Scale("cluster")` and inside it `with T.Scale("block")`, each region a phase. When
  the block region ends, the cluster sees all it wrote.
* `cluster.coords` are the coordinates of a launch with several dimensions; the first extent is x.
* The same primitive works at any scale. What it becomes (one block's tensor core, a pair of blocks, a
  device) is the target's business.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm_cluster(M: int, N: int, K: int, tM: int = 64, tN: int = 64, tK: int = 32):
    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(cluster=(T.ceildiv(N, tN), T.ceildiv(M, tM)), block=2, threads=128):
            with T.Scale("cluster") as cluster:
                cx, cy = cluster.coords
                a = T.alloc((tM, tK), "f32", level="l1")
                b = T.alloc((tK, tN), "f32", level="l1")
                c = T.alloc((tM, tN), "f32", level="l1")
                T.clear(c)
                for k in T.serial(T.ceildiv(K, tK)):
                    with T.Scale("block"):
                        T.copy(T.view(a, layout=T.FullRow), A[cy * tM, k * tK])
                        T.copy(T.view(b, layout=T.FullCol), B[k * tK, cx * tN])
                    T.gemm(a, b, c)
                with T.Scale("block"):
                    T.copy(C[cy * tM, cx * tN], T.view(c, layout=T.FullRow))

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    M, N, K = 128, 64, 80
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(gemm_cluster(M, N, K), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{M}x{N}x{K} by clusters of two blocks on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
