"""GEMM-ReduceScatter, overlapped.

A running sum travels round the ring; every device adds its term on the way.

* At step s, device r works on the rows that device r - s - 1 will own, so the sum arrives complete at its
  owner.
* `arriving` has two versions for the same reason as in ``30_allgather_gemm.py``.
* A condition such as `if s > 0` on a loop index becomes a branch of the Program.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm_reduce_scatter(M, N, K, devices=4, bM=32, bN=32):
    rows, inner = M // devices, K // devices

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // bN, rows // bM), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                my_A = T.view(A, layout=T.FullCol)
                my_B = T.view(B, layout=T.FullRow)
                my_C = T.view(C, layout=T.FullRow)
                term = T.alloc((rows, N), "f32", level="l2")
                arriving = T.alloc((2, rows, N), "f32", level="l2")
                for s in T.serial(n):
                    with T.Scale("block"):
                        a = T.alloc((bM, inner), "f32", level="l1")
                        b = T.alloc((inner, bN), "f32", level="l1")
                        c = T.alloc((bM, bN), "f32")
                        T.copy(a, my_A[(r - s - 1) % n * rows + by * bM, 0])
                        T.copy(b, my_B[0, bx * bN])
                        T.clear(c)
                        if s > 0:
                            T.copy(c, arriving[s % 2, by * bM, bx * bN])
                        T.gemm(a, b, c)
                        T.copy(term[by * bM, bx * bN], c)
                    if s < n - 1:
                        T.copy(arriving[(s + 1) % 2], term, dst=(r + 1) % n)
                    T.barrier()
                T.copy(my_C, term)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(4, mt.machine(machine).count("device"))
    M, N, K = 32 * devices, 64, 24 * devices
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(gemm_reduce_scatter(M, N, K, devices), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{M}x{N}x{K} reduced and scattered over {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
