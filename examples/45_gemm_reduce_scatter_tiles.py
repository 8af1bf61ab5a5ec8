"""GEMM-ReduceScatter, tile by tile.

A block puts its term of a tile into the device that owns it; the owner adds the terms of a tile as soon as
all are there.

* Each device has a place for every device's term, so puts never collide; `arrived` counts them, tile by
  tile.
* A device works on its own tiles last: when they wait for the others' terms, no block that sends is left
  waiting for a place.
* Without the places, `T.atomic_add(sum[i, j], c, dst=owner, scale="device")` adds in the owner's memory (in
  whatever order).
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm_reduce_scatter(M, N, K, devices=4, bM=32, bN=32):
    rows, inner = M // devices, K // devices
    tiles = rows // bM

    @T.program
    def kernel(A: T.Tensor((M, K), "f32"), B: T.Tensor((K, N), "f32"), C: T.Tensor((M, N), "f32")):
        with T.Kernel(device=devices, block=(N // bN, M // bM), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                my_A = T.view(A, layout=T.FullCol)
                my_B = T.view(B, layout=T.FullRow)
                my_C = T.view(C, layout=T.FullRow)
                terms = T.alloc((n, rows, N), "f32", level="l2")
                arrived = T.alloc((tiles, N // bN), "i32", level="l2")
                with T.Scale("block"):
                    a = T.alloc((bM, inner), "f32", level="l1")
                    b = T.alloc((inner, bN), "f32", level="l1")
                    c = T.alloc((bM, bN), "f32")
                    term = T.alloc((bM, bN), "f32")
                    owner = (r + 1 + by // tiles) % n  # this device's own tiles come last
                    at = by % tiles
                    T.copy(a, my_A[owner * rows + at * bM, 0])
                    T.copy(b, my_B[0, bx * bN])
                    T.gemm(a, b, c, clear_accum=True)
                    T.copy(terms[r, at * bM, bx * bN], c, dst=owner, scale="device")
                    T.signal(arrived[at, bx], dst=owner, scale="device")
                    if owner == r:
                        T.wait(arrived[at, bx], n, scale="device")
                        T.clear(c)
                        for s in T.serial(n):
                            T.copy(term, terms[s, at * bM, bx * bN])
                            for i, j in T.Parallel(bM, bN):
                                c[i, j] += term[i, j]
                        T.copy(my_C[at * bM, bx * bN], c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(4, mt.machine(machine).count("device"))
    M, N, K = 32 * devices * 2, 64, 24 * devices
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.empty((M, N), np.float32)
    mt.run(gemm_reduce_scatter(M, N, K, devices), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"terms of {M}x{N}x{K} put by blocks, summed by {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
