"""AllGather-GEMM, tile by tile.

Blocks put tiles of A into every device and signal it; a block that multiplies waits for the tile it needs,
and for nothing else.

* `dst=rank, scale="device"` counts devices: a block puts into another device's memory, and signals it
  there.
* The signal comes after the put to the same device; whoever waits for it may read what was put. To tell a
  *third* device, put `T.fence("device")` between the two.
* A block that only waits is no danger: those that send have smaller numbers, so they have their place
  already.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def allgather_gemm(M, N, K, devices=4, bM=32, bN=32):
    rows, columns = M // devices, N // devices
    tiles = rows // bM

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(columns // bN, M // bM), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                my_A = T.view(A, layout=T.FullRow)
                my_B = T.view(B, layout=T.FullCol)
                my_C = T.view(C, layout=T.FullCol)
                gathered = T.alloc((M, K), "f32", level="l2")
                ready = T.alloc((M // bM,), "i32", level="l2")
                with T.Scale("block"):
                    a = T.alloc((bM, K), "f32", level="l1")
                    b = T.alloc((K, bN), "f32", level="l1")
                    c = T.alloc((bM, bN), "f32")
                    tile = (r * tiles + by) % (M // bM)  # this device's own tiles come first
                    if bx == 0 and by < tiles:
                        T.copy(a, my_A[by * bM, 0])
                        for s in T.serial(n):
                            T.copy(gathered[tile * bM, 0], a, dst=(r + s) % n, scale="device")
                            T.signal(ready[tile], dst=(r + s) % n, scale="device")
                    T.copy(b, my_B[0, bx * bN])
                    T.wait(ready[tile], 1, scale="device")
                    T.copy(a, gathered[tile * bM, 0])
                    T.gemm(a, b, c, clear_accum=True)
                    T.copy(my_C[tile * bM, bx * bN], c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(4, mt.machine(machine).count("device"))
    M, N, K = 32 * devices * 2, 64 * devices, 48
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(allgather_gemm(M, N, K, devices), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    print(f"tiles of A put by blocks, {M}x{N}x{K} on {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
