"""A queue of work.

Blocks take rows of uneven length by tickets, whichever block is free first.

* `T.atomic_add(..., return_prev=True)` gives every ticket once; without the atomic the run reports a race
  on `ticket`.
* `while True:` with a `break` on a run-time value stays a loop of the Program; it must end within its bound
  (`T.bounded`).
* `T.read_scalar` makes a number of the data usable as a trip count.
* `T.Input` arguments are protected: a write to them is refused while building.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def ragged_sums(rows: int, width: int, blocks: int = 6, chunk: int = 32):
    @T.program
    def kernel(
        X: T.Input((rows, width), "f32"), length: T.Input((rows,), "i32"), ticket: T.Tensor((1,), "i32"),
        Y: T.Tensor((rows,), "f32"),
    ):  # fmt: skip
        with T.Kernel(block=blocks, threads=32):
            x = T.alloc((1, chunk), "f32")
            total = T.alloc((1,), "f32")
            while True:
                row = T.atomic_add(ticket[0], 1, return_prev=True)
                if row >= rows:
                    break
                n = T.read_scalar(length[row], bound=width)
                T.clear(total)
                for k in T.serial(T.ceildiv(n, chunk)):
                    T.copy(x, X[row, k * chunk])
                    for i in T.Parallel(chunk):
                        x[0, i] = T.if_then_else(k * chunk + i < n, x[0, i], 0.0)
                    T.reduce_sum(x, total, dim=1, clear=False)
                T.copy(Y[row], total)

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    rows, width = 40, 200
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width), dtype=np.float32)
    length = rng.integers(0, width + 1, rows).astype(np.int32)
    y = np.empty(rows, np.float32)
    mt.run(ragged_sums(rows, width), x, length, np.zeros(1, np.int32), y, machine=machine, **options)
    expected = [row[:n].sum() for row, n in zip(x, length, strict=True)]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    print(f"{rows} rows of 0 to {width} numbers summed by 6 blocks on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
