"""AllGather-GEMM, overlapped.

Rows of A travel round a ring while blocks work on the rows at hand.

* `T.copy(tile, x, dst=rank)` puts into that unit's tile. On return the source may be reused; the data is
  visible there after a barrier of this scale.
* Two slots alternate: the neighbour may still read one while the other is filled. Use one slot only, and
  the run reports a data race with both lines.
* In time, a later statement may start when its data is there: the put and the block region overlap.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def allgather_gemm(M, N, K, devices=4, bM=32, bN=32):
    rows = M // devices

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // devices // bN, rows // bM), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                my_A = T.view(A, layout=T.FullRow)
                my_B = T.view(B, layout=T.FullCol)
                my_C = T.view(C, layout=T.FullCol)
                ring = T.alloc((2, rows, K), "f32", level="l2")
                T.copy(ring[0], my_A)
                T.barrier()
                for s in T.serial(n):
                    if s < n - 1:
                        T.copy(ring[(s + 1) % 2], ring[s % 2], dst=(r + 1) % n)
                    with T.Scale("block"):
                        a = T.alloc((bM, K), "f32", level="l1")
                        b = T.alloc((K, bN), "f32", level="l1")
                        c = T.alloc((bM, bN), "f32")
                        T.copy(a, ring[s % 2, by * bM, 0])
                        T.copy(b, my_B[0, bx * bN])
                        T.gemm(a, b, c, clear_accum=True)
                        T.copy(my_C[(r - s) % n * rows + by * bM, bx * bN], c)
                    T.barrier()

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(4, mt.machine(machine).count("device"))
    M, N, K = 32 * devices * 2, 32 * devices, 48
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(allgather_gemm(M, N, K, devices), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    print(f"all-gather of A behind {M}x{N}x{K} on {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
