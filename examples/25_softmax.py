"""Softmax.

Two passes over tiles of columns with a running maximum and a running sum.

* `T.reduce_max(x, top, dim=1, clear=False)` keeps the maximum of before; `T.copy(before, top)` saves it
  first, to rescale the sum.
* Columns beyond the edge are zeros after an anchored copy; `T.if_then_else` turns them into minus infinity.
* Assignments in `T.Parallel` are rounded to the tile's dtype, one operation at a time, as the hardware
  does.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def softmax(M: int, N: int, bM: int = 32, bN: int = 64):
    @T.program
    def kernel(X: T.Tensor((M, N), "f32"), Y: T.Tensor((M, N), "f32")):
        with T.Kernel(block=T.ceildiv(M, bM), threads=128) as bx:
            x = T.alloc((bM, bN), "f32")
            top = T.alloc((bM,), "f32")
            before = T.alloc((bM,), "f32")
            part = T.alloc((bM,), "f32")
            total = T.alloc((bM,), "f32")
            T.fill(top, -T.infinity("f32"))
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(N, bN)):
                T.copy(x, X[bx * bM, k * bN])
                for i, j in T.Parallel(bM, bN):
                    x[i, j] = T.if_then_else(k * bN + j < N, x[i, j], -T.infinity("f32"))
                T.copy(before, top)
                T.reduce_max(x, top, dim=1, clear=False)
                for i, j in T.Parallel(bM, bN):
                    x[i, j] = T.exp(x[i, j] - top[i])
                T.reduce_sum(x, part, dim=1)
                for i in T.Parallel(bM):
                    total[i] = total[i] * T.exp(before[i] - top[i]) + part[i]
            for k in T.Pipelined(T.ceildiv(N, bN)):
                T.copy(x, X[bx * bM, k * bN])
                for i, j in T.Parallel(bM, bN):
                    x[i, j] = T.exp(x[i, j] - top[i]) / total[i]
                T.copy(Y[bx * bM, k * bN], x)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    M, N = 70, 150
    x = np.random.default_rng(0).standard_normal((M, N), dtype=np.float32) * 4
    y = np.empty_like(x)
    mt.run(softmax(M, N), x, y, machine=machine, **options)
    expected = np.exp(x - x.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-7)
    print(f"softmax of {M}x{N} on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
