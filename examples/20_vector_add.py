"""Vector add: the smallest tile program. Blocks take one tile each; the last one reaches over the edge."""

import numpy as np

import megatile as mt
import megatile.language as T


def vector_add(n: int, tile: int = 256):
    @T.program
    def add(A: T.Tensor((n,), "f32"), B: T.Tensor((n,), "f32"), C: T.Tensor((n,), "f32")):
        with T.Kernel(block=T.ceildiv(n, tile), threads=128) as bx:
            a = T.alloc((tile,), "f32", level="l0")
            b = T.alloc((tile,), "f32", level="l0")
            T.copy(a, A[bx * tile])
            T.copy(b, B[bx * tile])
            for i in T.Parallel(tile):
                a[i] = a[i] + b[i]
            T.copy(C[bx * tile], a)

    return add


def main(machine: str = "dgx-h100", **options) -> None:
    n = 10_000
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n), dtype=np.float32)
    c = np.empty_like(a)
    mt.run(vector_add(n), a, b, c, machine=machine, **options)
    np.testing.assert_array_equal(c, a + b)
    print(f"{n} sums on {machine}, the last tile cut at the edge: equal to NumPy")


if __name__ == "__main__":
    main()
