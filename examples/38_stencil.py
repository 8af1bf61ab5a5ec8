"""A stencil on a wafer.

Every core keeps a patch, puts its edges into its neighbours' halos, and averages.

* On `cerebras-wse2` a block is a core; on a GPU the same program runs on blocks.
* Blocks that wait for each other must all be resident; with too many the run says how many fit.
* `dst=x - 1, axis=0` is the neighbour along x.
* Old and new values are two versions of one tile: reading and writing the same version in `T.Parallel`
  would be refused.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def stencil(nx: int, ny: int, h: int = 8, w: int = 8, steps: int = 4):
    """``nx`` by ``ny`` cores with patches of ``h`` rows and ``w`` columns; the border stays zero."""
    patches = (T.Shard(1), T.Shard(0))  # x cuts columns, y rows

    @T.program
    def kernel(U: T.Tensor((ny * h, nx * w), "f32")):
        with T.Kernel(block=(nx, ny)) as (x, y):
            with T.Scale("block"):
                mine = T.view(U, layout=patches)
                u = T.alloc((2, h + 2, w + 2), "f32")  # two versions, with a halo of one
                T.clear(u)
                T.copy(u[0, 1 : h + 1, 1 : w + 1], mine)
                T.barrier()
                for t in T.serial(steps):
                    now, new = t % 2, (t + 1) % 2
                    if x > 0:
                        T.copy(u[now, 1 : h + 1, w + 1], u[now, 1 : h + 1, 1], dst=x - 1, axis=0)
                    if x < nx - 1:
                        T.copy(u[now, 1 : h + 1, 0], u[now, 1 : h + 1, w], dst=x + 1, axis=0)
                    if y > 0:
                        T.copy(u[now, h + 1, 1 : w + 1], u[now, 1, 1 : w + 1], dst=y - 1, axis=1)
                    if y < ny - 1:
                        T.copy(u[now, 0, 1 : w + 1], u[now, h, 1 : w + 1], dst=y + 1, axis=1)
                    T.barrier()
                    for i, j in T.Parallel(h, w):
                        around = (
                            u[now, i, j + 1] + u[now, i + 2, j + 1] + u[now, i + 1, j] + u[now, i + 1, j + 2]
                        )
                        u[new, i + 1, j + 1] = 0.25 * around
                T.copy(mine, u[steps % 2, 1 : h + 1, 1 : w + 1])

    return kernel


def main(machine: str = "cerebras-wse2", **options) -> None:
    nx, ny, steps = 4, 3, 4
    u = np.random.default_rng(0).standard_normal((ny * 8, nx * 8), dtype=np.float32)
    expected = u.copy()
    for _ in range(steps):
        p = np.pad(expected, 1)
        expected = 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:])
    mt.run(stencil(nx, ny, steps=steps), u, machine=machine, **options)
    np.testing.assert_allclose(u, expected, rtol=1e-5, atol=1e-6)
    print(f"{steps} steps of {nx * ny} patches on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
