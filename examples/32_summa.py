"""SUMMA on a grid of devices.

Broadcast a column of A along rows and a row of B along columns, multiply, repeat.

* `device=(p, p)` launches a grid; `device.coords` are the coordinates and `axis=` chooses the line of units
  a collective acts on.
* `layout=(T.Shard(0), T.Shard(1))` gives one layout per axis of the grid: axis 0 cuts rows, axis 1 columns.
* `root=k` is the position along that axis.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def summa(n: int, p: int = 2):
    b = n // p
    grid = (T.Shard(0), T.Shard(1))  # axis 0 of the devices cuts rows, axis 1 columns

    @T.program
    def kernel(A: T.Tensor((n, n), "f32"), B: T.Tensor((n, n), "f32"), C: T.Tensor((n, n), "f32")):
        with T.Kernel(device=(p, p)):
            with T.Scale("device") as device:
                row, col = device.coords
                my_A, my_B, my_C = (T.view(X, layout=grid) for X in (A, B, C))
                a = T.alloc((b, b), "f32", level="l2")
                b_ = T.alloc((b, b), "f32", level="l2")
                c = T.alloc((b, b), "f32", level="l2")
                T.clear(c)
                for k in T.serial(p):
                    T.copy(a, my_A)
                    T.copy(b_, my_B)
                    T.broadcast(a, root=k, axis=1)
                    T.broadcast(b_, root=k, axis=0)
                    T.gemm(a, b_, c)
                T.copy(my_C, c)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    n, p = 96, 2
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n, n), dtype=np.float32)
    c = np.empty_like(a)
    mt.run(summa(n, p), a, b, c, machine=machine, **options)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-4)
    print(f"{n}x{n} on {p}x{p} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
