"""Cannon's algorithm.

Skew once, then multiply and shift; no broadcast.

* The skew is a put whose destination depends on the own coordinates: `dst=(col - row) % p, axis=1`.
* A put to oneself is a put like any other: it needs the barrier too.
* Swapping two tile variables in a loop is refused, because a loop body is read once; index a tile with `k %
  2` instead.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def cannon(n: int, p: int = 2):
    b = n // p
    grid = (T.Shard(0), T.Shard(1))

    @T.program
    def kernel(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(device=(p, p)):
            with T.Scale("device") as device:
                row, col = device.coords
                my_A, my_B, my_C = (T.view(X, layout=grid) for X in (A, B, C))
                a = T.alloc((2, b, b), "f32", level="l2")
                b_ = T.alloc((2, b, b), "f32", level="l2")
                c = T.alloc((b, b), "f32", level="l2")
                T.clear(c)
                T.copy(a[0], my_A, dst=(col - row) % p, axis=1)
                T.copy(b_[0], my_B, dst=(row - col) % p, axis=0)
                T.barrier()
                for k in T.serial(p):
                    T.gemm(a[k % 2], b_[k % 2], c)
                    if k < p - 1:
                        T.copy(a[(k + 1) % 2], a[k % 2], dst=(col - 1) % p, axis=1)
                        T.copy(b_[(k + 1) % 2], b_[k % 2], dst=(row - 1) % p, axis=0)
                    T.barrier()
                T.copy(my_C, c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    n, p = 64, 2
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), dtype=np.float32)
    c = np.empty_like(a)
    mt.run(cannon(n, p), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{n}x{n} on {p}x{p} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
