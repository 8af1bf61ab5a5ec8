"""Mixture of experts.

Tokens go to the device of their expert and come back; how many is known only at run time.

* `T.read_scalar(count[p], bound=capacity)` makes a number of the data usable in extents, trip counts, peers
  and indices; the bound is checked.
* `x[0, order[e, c], j]` is a gather.
* `T.all_to_all` tells every device how many tokens to expect from each other one.
* `for p in range(n)` is unrolled while building: n is a number.
"""

import numpy as np

import megatile as mt
import megatile.language as T


def moe(tokens, dim, experts=4, capacity=None):
    capacity = capacity or tokens

    @T.program
    def kernel(
        X: T.Tensor((experts, tokens, dim), "f32"),
        Expert: T.Tensor((experts, tokens), "i32"),
        W: T.Tensor((experts, dim, dim), "f32"),
        Y: T.Tensor((experts, tokens, dim), "f32"),
    ):
        with T.Kernel(device=experts):
            with T.Scale("device") as (r, n):
                x, which, y = (T.view(t, layout=T.Shard(0)) for t in (X, Expert, Y))
                w = T.view(W, layout=T.Shard(0))
                order = T.alloc((n, tokens), "i32", level="l2")  # which of my tokens go where, in order
                count = T.alloc((n,), "i32", level="l2")
                expected = T.alloc((n,), "i32", level="l2")
                packed = T.alloc((n, capacity, dim), "f32", level="l2")
                inbox = T.alloc((n, capacity, dim), "f32", level="l2")
                result = T.alloc((n, capacity, dim), "f32", level="l2")
                back = T.alloc((n, capacity, dim), "f32", level="l2")

                T.clear(count)
                T.clear(order)
                T.clear(packed)
                for t in T.serial(tokens):
                    e = T.read_scalar(which[0, t], bound=n - 1)
                    c = T.read_scalar(count[e], bound=capacity - 1)
                    order[e, c] = t
                    count[e] = c + 1
                for e, c, j in T.Parallel(n, capacity, dim):
                    packed[e, c, j] = x[0, order[e, c], j]  # a gather

                T.all_to_all(expected, count)
                for p in range(n):
                    sent = T.read_scalar(count[p], bound=capacity)
                    T.copy(inbox[r, 0:sent, :], packed[p, 0:sent, :], dst=p)
                T.barrier()
                for p in range(n):
                    got = T.read_scalar(expected[p], bound=capacity)
                    T.gemm(inbox[p, 0:got, :], w[0], result[p, 0:got, :], clear_accum=True)
                    T.copy(back[r, 0:got, :], result[p, 0:got, :], dst=p)
                T.barrier()
                for p in range(n):
                    mine = T.read_scalar(count[p], bound=capacity)
                    for c in T.serial(mine):
                        t = T.read_scalar(order[p, c], bound=tokens - 1)
                        T.copy(y[0, t, :], back[p, c, :])

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    experts = min(4, mt.machine(machine).count("device"))
    tokens, dim = 12, 8
    rng = np.random.default_rng(0)
    x = rng.standard_normal((experts, tokens, dim), dtype=np.float32)
    which = rng.integers(0, experts, (experts, tokens)).astype(np.int32)
    w = rng.standard_normal((experts, dim, dim), dtype=np.float32)
    y = np.zeros_like(x)
    mt.run(moe(tokens, dim, experts), x, which, w, y, machine=machine, **options)
    np.testing.assert_allclose(y, np.einsum("dti,dtij->dtj", x, w[which]), rtol=1e-4, atol=1e-5)
    print(f"{tokens} tokens on each of {experts} devices of {machine} met their experts: equal to NumPy")


if __name__ == "__main__":
    main()
