"""Producer and consumer.

One warp group loads, the other multiplies; signals and waits keep them apart.

* `if wg == 0:` specialises. Both branches are read; each unit takes its own.
* A flag counts up and is never reset: the k-th use of a slot waits for the value `k // slots + 1`.
* Drop the wait on `empty`, and the slot is overwritten while it is read: a data race. Drop the signal, and
  the deadlock report names who waits where.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def specialised_gemm(M, N, K, bM=32, bN=32, bK=16, slots=2):
    steps = T.ceildiv(K, bK)

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), warpgroup=2) as (bx, by):
            a = T.alloc((slots, bM, bK), "f32", level="l1")
            b = T.alloc((slots, bK, bN), "f32", level="l1")
            with T.Scale("warpgroup") as (wg, _):
                full = T.alloc((slots,), "i32", level="l1")
                empty = T.alloc((slots,), "i32", level="l1")
                c = T.alloc((bM, bN), "f32")
                if wg == 0:
                    for k in T.serial(steps):
                        if k >= slots:
                            T.wait(empty[k % slots], k // slots)
                        T.copy(a[k % slots, 0:bM, 0:bK], A[by * bM, k * bK])
                        T.copy(b[k % slots, 0:bK, 0:bN], B[k * bK, bx * bN])
                        T.signal(full[k % slots], dst=1)
                else:
                    T.clear(c)
                    for k in T.serial(steps):
                        T.wait(full[k % slots], k // slots + 1)
                        T.gemm(a[k % slots], b[k % slots], c)
                        T.signal(empty[k % slots], dst=0)
                    T.copy(C[by * bM, bx * bN], c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    M, N, K = 64, 48, 80
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(specialised_gemm(M, N, K), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{M}x{N}x{K} by producers and consumers on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
