"""FlashAttention, forward.

Keys and values pass by in tiles; the maximum and the sum run along. Causal masks and grouped queries
included.

* `if causal:` is decided while building; `k * bN + j <= bx * bM + i` is known only at run time and becomes
  part of the Program. Both are written as plain Python.
* The trip count `T.min(steps, ...)` depends on the block: later blocks see more keys.
* An anchor with more dimensions than the tile keeps the leading ones fixed: `Q[bz, by, bx * bM, 0]` is a
  matrix.
* `LSE` (log2 of the sums, plus the maximum) is what the backward pass and a merge across devices need.
"""

import math

import numpy as np

import megatile as mt
import megatile.language as T


def flash_attention(batch, heads, kv_heads, seq, dim, causal=True, bM=64, bN=64, dtype="f32", stages=2):
    scale = math.log2(math.e) / math.sqrt(dim)  # powers of two throughout
    group = heads // kv_heads
    minus_infinity = -T.infinity("f32")

    @T.program
    def forward(
        Q: T.Tensor((batch, heads, seq, dim), dtype),
        K: T.Tensor((batch, kv_heads, seq, dim), dtype),
        V: T.Tensor((batch, kv_heads, seq, dim), dtype),
        O: T.Tensor((batch, heads, seq, dim), dtype),
        LSE: T.Tensor((batch, heads, seq), "f32"),
    ):
        with T.Kernel(block=(T.ceildiv(seq, bM), heads, batch), threads=128) as (bx, by, bz):
            q = T.alloc((bM, dim), dtype, level="l1")
            key = T.alloc((bN, dim), dtype, level="l1")
            value = T.alloc((bN, dim), dtype, level="l1")
            score = T.alloc((bM, bN), "f32")
            weight = T.alloc((bM, bN), dtype)
            out = T.alloc((bM, dim), "f32")
            top = T.alloc((bM,), "f32")
            before = T.alloc((bM,), "f32")
            part = T.alloc((bM,), "f32")
            total = T.alloc((bM,), "f32")
            T.copy(q, Q[bz, by, bx * bM, 0])
            T.clear(out)
            T.clear(total)
            T.fill(top, minus_infinity)
            steps = T.ceildiv(seq, bN)
            if causal:
                steps = T.min(steps, T.ceildiv((bx + 1) * bM, bN))
            for k in T.Pipelined(steps, num_stages=stages):
                T.copy(key, K[bz, by // group, k * bN, 0])
                T.copy(value, V[bz, by // group, k * bN, 0])
                T.gemm(q, key, score, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(bM, bN):
                    inside = k * bN + j < seq
                    if causal:
                        inside = inside and k * bN + j <= bx * bM + i
                    score[i, j] = T.if_then_else(inside, score[i, j] * scale, minus_infinity)
                T.copy(before, top)
                T.reduce_max(score, top, dim=1, clear=False)
                for i, j in T.Parallel(bM, bN):
                    score[i, j] = T.exp2(score[i, j] - top[i])
                T.reduce_sum(score, part, dim=1)
                for i in T.Parallel(bM):
                    total[i] = total[i] * T.exp2(before[i] - top[i]) + part[i]
                for i, j in T.Parallel(bM, dim):
                    out[i, j] *= T.exp2(before[i] - top[i])
                T.copy(weight, score)
                T.gemm(weight, value, out)
            for i, j in T.Parallel(bM, dim):
                out[i, j] /= total[i]
            for i in T.Parallel(bM):
                top[i] += T.log2(total[i])
            T.copy(O[bz, by, bx * bM, 0], out)
            T.copy(LSE[bz, by, bx * bM], top)

    return forward


def reference(q, k, v, causal):
    """Attention in float64, and log2 of the sums."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("bhid,bhjd->bhij", q, k, dtype=np.float64) * math.log2(math.e) / math.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp2(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", weights / total, v), (top + np.log2(total))[..., 0]


def main(machine: str = "dgx-h100", **options) -> None:
    batch, heads, kv_heads, seq, dim = 1, 4, 2, 96, 32
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, heads, seq, dim), dtype=np.float32)
    k, v = rng.standard_normal((2, batch, kv_heads, seq, dim), dtype=np.float32)
    for causal in (True, False):
        out, lse = np.empty_like(q), np.empty((batch, heads, seq), np.float32)
        program = flash_attention(batch, heads, kv_heads, seq, dim, causal, bM=32, bN=32)
        mt.run(program, q, k, v, out, lse, machine=machine, **options)
        expected, expected_lse = reference(q, k, v, causal)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lse, expected_lse, rtol=1e-4, atol=1e-4)
    print(f"attention of {heads} heads over {kv_heads}, {seq} positions, on {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
