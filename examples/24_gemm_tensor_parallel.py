"""Tensor parallel GEMM.

Four devices and two warp groups in one program: the example of TileScale's README, corrected.

* The first view of a tensor at a scale says how it is placed there: A by columns over the devices, B by
  rows, C as a copy on each.
* `with T.Scale("warpgroup") as wg_id, wg_num:` is accepted and means `as (wg_id, wg_num)`.
* Regions one after the other are phases: blocks compute, then devices all-reduce; blocks may run in waves,
  because nothing waits for a block that is not resident.
* Leave the last all-reduce out, and the run ends with "the copies of 'C' differ at the end ... a reduction
  is missing".
"""

import numpy as np

import megatile as mt
import megatile.language as T


def gemm_tensor_parallel(M: int, N: int, K: int, devices: int = 4, bM: int = 64, bN: int = 64, bK: int = 32):
    dtype, accum_dtype = "f32", "f32"

    @T.program
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(device=devices, block=(T.ceildiv(N, bN), T.ceildiv(M, bM)), threads=256) as (bx, by):
            with T.Scale("device"):
                A_global = T.view(A, layout=T.FullCol)
                B_global = T.view(B, layout=T.FullRow)
                C_global = T.view(C, layout=T.Replica)

            with T.Scale("block"):
                A_local = T.alloc((bM, bK), dtype, level="l0")
                B_local = T.alloc((bK, bN), dtype, level="l0")
                C_local = T.alloc((bM, bN), accum_dtype, level="l0")
                T.clear(C_local)

                for k in T.Pipelined(T.ceildiv(A_global.shape[1], bK), num_stages=3):
                    with T.Scale("warpgroup") as wg_id, wg_num:
                        A_local_wg = T.view(A_local, layout=T.FullCol)
                        B_local_wg = T.view(B_local, layout=T.FullRow)
                        C_local_wg = T.view(C_local, layout=T.Replica)
                        T.copy(A_local_wg, A_global[by * bM, k * bK])
                        T.copy(B_local_wg, B_global[k * bK, bx * bN])
                        T.gemm(A_local_wg, B_local_wg, C_local_wg)

                with T.Scale("warpgroup"):
                    T.allreduce(T.view(C_local))
                T.copy(C_global[by * bM, bx * bN], C_local)

            with T.Scale("device") as dev_id, dev_num:
                T.allreduce(C_global)

    return gemm


def main(machine: str = "dgx-h100", **options) -> None:
    M, N, K = 128, 128, 256
    devices = min(4, mt.machine(machine).count("device"))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    c = np.zeros((M, N), np.float32)
    mt.run(gemm_tensor_parallel(M, N, K, devices), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    print(f"{M}x{N}x{K} over {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
