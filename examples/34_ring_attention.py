"""Ring attention.

Queries stay, keys and values go round, and the running maximum and sum live in device memory between steps.

* Tiles allocated at device scale stay for the whole launch; those of a block end with its region.
* The last statement is elementwise code at device scale, on a view of the output.
* With `schedule="adversarial"` puts arrive as late as they may; a correct program gives the same result.
"""

import math

import numpy as np

import megatile as mt
import megatile.language as T


def ring_attention(heads, seq, dim, devices=4, bM=16):
    rows = seq // devices
    scale = math.log2(math.e) / math.sqrt(dim)
    shape = (heads, seq, dim)

    @T.program
    def kernel(
        Q: T.Tensor(shape, "f32"),
        K: T.Tensor(shape, "f32"),
        V: T.Tensor(shape, "f32"),
        O: T.Tensor(shape, "f32"),
    ):
        with T.Kernel(device=devices, block=(rows // bM, heads), threads=128) as (bx, by):
            with T.Scale("device") as (r, n):
                my_Q, my_K, my_V, my_O = (T.view(X, layout=T.Shard(1)) for X in (Q, K, V, O))
                keys = T.alloc((2, heads, rows, dim), "f32", level="l2")
                values = T.alloc((2, heads, rows, dim), "f32", level="l2")
                top = T.alloc((heads, rows), "f32", level="l2")
                total = T.alloc((heads, rows), "f32", level="l2")
                T.copy(keys[0], my_K)
                T.copy(values[0], my_V)
                T.fill(top, -T.infinity("f32"))
                T.clear(total)
                T.fill(my_O, 0)
                T.barrier()
                for s in T.serial(n):
                    if s < n - 1:
                        T.copy(keys[(s + 1) % 2], keys[s % 2], dst=(r + 1) % n)
                        T.copy(values[(s + 1) % 2], values[s % 2], dst=(r + 1) % n)
                    with T.Scale("block"):
                        q = T.alloc((bM, dim), "f32", level="l1")
                        k = T.alloc((rows, dim), "f32", level="l1")
                        v = T.alloc((rows, dim), "f32", level="l1")
                        score = T.alloc((bM, rows), "f32")
                        out = T.alloc((bM, dim), "f32")
                        before = T.alloc((bM,), "f32")
                        now = T.alloc((bM,), "f32")
                        part = T.alloc((bM,), "f32")
                        add = T.alloc((bM,), "f32")
                        T.copy(q, my_Q[by, bx * bM, 0])
                        T.copy(k, keys[s % 2, by, 0, 0])
                        T.copy(v, values[s % 2, by, 0, 0])
                        T.copy(out, my_O[by, bx * bM, 0])
                        T.copy(before, top[by, bx * bM])
                        T.copy(part, total[by, bx * bM])
                        T.gemm(q, k, score, transpose_B=True, clear_accum=True)
                        for i, j in T.Parallel(bM, rows):
                            score[i, j] *= scale
                        T.copy(now, before)
                        T.reduce_max(score, now, dim=1, clear=False)
                        for i, j in T.Parallel(bM, rows):
                            score[i, j] = T.exp2(score[i, j] - now[i])
                        T.reduce_sum(score, add, dim=1)
                        for i in T.Parallel(bM):
                            part[i] = part[i] * T.exp2(before[i] - now[i]) + add[i]
                        for i, j in T.Parallel(bM, dim):
                            out[i, j] *= T.exp2(before[i] - now[i])
                        T.gemm(score, v, out)
                        T.copy(my_O[by, bx * bM, 0], out)
                        T.copy(top[by, bx * bM], now)
                        T.copy(total[by, bx * bM], part)
                    T.barrier()
                for h, i, j in T.Parallel(heads, rows, dim):
                    my_O[h, i, j] /= total[h, i]

    return kernel


def main(machine: str = "dgx-h100", **options) -> None:
    devices = min(4, mt.machine(machine).count("device"))
    heads, seq, dim = 2, 32 * devices, 16
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, heads, seq, dim), dtype=np.float32)
    out = np.empty_like(q)
    mt.run(ring_attention(heads, seq, dim, devices), q, k, v, out, machine=machine, **options)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(dim)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    expected = weights / weights.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
    print(f"{seq} positions round {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
