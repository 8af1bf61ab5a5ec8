"""FlashAttention, backward.

Two phases: a sum per row first, then dK and dV per tile of keys and dQ by atomic additions.

* The second region sees everything the first wrote, from all blocks: regions are phases.
* `T.atomic_add` may hit the same element from many blocks; a plain `+=` there is reported as a data race.
* `transpose_A=True` and `transpose_B=True` take the tiles the other way round without a copy.
"""

import math

import numpy as np

import megatile as mt
import megatile.language as T


def flash_attention_backward(batch, heads, seq, dim, causal=True, bM=32, bN=32):
    scale = 1 / math.sqrt(dim)
    log2e = math.log2(math.e)
    shape = (batch, heads, seq, dim)

    @T.program
    def backward(
        Q: T.Tensor(shape, "f32"), K: T.Tensor(shape, "f32"), V: T.Tensor(shape, "f32"),
        O: T.Tensor(shape, "f32"),
        dO: T.Tensor(shape, "f32"), LSE: T.Tensor(shape[:3], "f32"), Delta: T.Tensor(shape[:3], "f32"),
        dQ: T.Tensor(shape, "f32"), dK: T.Tensor(shape, "f32"), dV: T.Tensor(shape, "f32"),
    ):  # fmt: skip
        with T.Kernel(block=(T.ceildiv(seq, bN), heads, batch), threads=128) as (bx, by, bz):
            with T.Scale("block"):  # bM = bN: the same blocks cover the rows
                out = T.alloc((bN, dim), "f32")
                grad = T.alloc((bN, dim), "f32")
                delta = T.alloc((bN,), "f32")
                T.copy(out, O[bz, by, bx * bN, 0])
                T.copy(grad, dO[bz, by, bx * bN, 0])
                for i, j in T.Parallel(bN, dim):
                    out[i, j] *= grad[i, j]
                T.reduce_sum(out, delta, dim=1)
                T.copy(Delta[bz, by, bx * bN], delta)
                T.clear(grad)
                T.copy(dQ[bz, by, bx * bN, 0], grad)

            with T.Scale("block"):
                key = T.alloc((bN, dim), "f32", level="l1")
                value = T.alloc((bN, dim), "f32", level="l1")
                q = T.alloc((bM, dim), "f32", level="l1")
                g = T.alloc((bM, dim), "f32", level="l1")
                lse = T.alloc((bM,), "f32")
                row = T.alloc((bM,), "f32")
                p = T.alloc((bM, bN), "f32")
                dp = T.alloc((bM, bN), "f32")
                dq = T.alloc((bM, dim), "f32")
                dk = T.alloc((bN, dim), "f32")
                dv = T.alloc((bN, dim), "f32")
                T.copy(key, K[bz, by, bx * bN, 0])
                T.copy(value, V[bz, by, bx * bN, 0])
                T.clear(dk)
                T.clear(dv)
                first = (bx * bN) // bM if causal else 0
                for m in T.serial(first, T.ceildiv(seq, bM)):
                    T.copy(q, Q[bz, by, m * bM, 0])
                    T.copy(g, dO[bz, by, m * bM, 0])
                    T.copy(lse, LSE[bz, by, m * bM])
                    T.copy(row, Delta[bz, by, m * bM])
                    T.gemm(q, key, p, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(bM, bN):
                        inside = m * bM + i < seq and bx * bN + j < seq
                        if causal:
                            inside = inside and bx * bN + j <= m * bM + i
                        p[i, j] = T.if_then_else(inside, T.exp2(p[i, j] * scale * log2e - lse[i]), 0.0)
                    T.gemm(p, g, dv, transpose_A=True)
                    T.gemm(g, value, dp, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(bM, bN):
                        dp[i, j] = p[i, j] * (dp[i, j] - row[i]) * scale
                    T.gemm(dp, q, dk, transpose_A=True)
                    T.gemm(dp, key, dq, clear_accum=True)
                    for i, j in T.Parallel(bM, dim):
                        if m * bM + i < seq:
                            T.atomic_add(dQ[bz, by, m * bM + i, j], dq[i, j])
                T.copy(dK[bz, by, bx * bN, 0], dk)
                T.copy(dV[bz, by, bx * bN, 0], dv)

    return backward


def reference(q, k, v, do, causal):
    """Gradients in float64, and what the forward pass hands over (output, log2 of the sums)."""
    q, k, v, do = (x.astype(np.float64) for x in (q, k, v, do))
    scale = 1 / math.sqrt(q.shape[-1])
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale
    if causal:
        s = np.where(np.tril(np.ones(s.shape[-2:], bool)), s, -np.inf)
    lse = np.log(np.exp(s).sum(-1))
    p = np.exp(s - lse[..., None])
    out = p @ v
    dp = do @ v.swapaxes(-1, -2)
    ds = p * (dp - (do * out).sum(-1, keepdims=True)) * scale
    return out, lse * math.log2(math.e), ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do


def main(machine: str = "dgx-h100", **options) -> None:
    batch, heads, seq, dim = 1, 2, 80, 16
    rng = np.random.default_rng(0)
    q, k, v, do = rng.standard_normal((4, batch, heads, seq, dim), dtype=np.float32)
    for causal in (True, False):
        out, lse, *gradients = (x.astype(np.float32) for x in reference(q, k, v, do, causal))
        dq, dk, dv = np.empty_like(q), np.empty_like(q), np.empty_like(q)
        program = flash_attention_backward(batch, heads, seq, dim, causal)
        mt.run(program, q, k, v, out, do, lse, np.empty_like(lse), dq, dk, dv, machine=machine, **options)
        for got, expected in zip((dq, dk, dv), gradients, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    print(f"gradients of attention over {seq} positions on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
