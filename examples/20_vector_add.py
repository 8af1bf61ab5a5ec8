"""Vector add.

The smallest tile program: blocks take one tile each, add, and write back.

* `@T.program` reads the function once and builds a *Program*; `print(vector_add(1000))` shows it as text.
* `T.Kernel(block=..., threads=...)` says how many units of each scale run the body. Statements outside
  every `T.Scale` run on blocks, and `as bx` is the block's number.
* `A[bx * tile]` in a copy is an *anchor*: it takes its extent from the other side. Over the edge reads give
  zero and writes are dropped, so the last tile needs no special case. A slice, `A[i : i + tile]`, must lie
  inside.
* `for i in T.Parallel(tile)` is elementwise code: all iterations at once, none depending on another.
"""

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
