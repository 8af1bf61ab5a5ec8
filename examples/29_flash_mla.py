"""FlashMLA decode over four devices.

The second example of TileScale's README, corrected: context parallel over devices, scores shared by warp
groups.

* A layout may be a function from index to owning unit: `lambda i, j, k, l: j // (seqlen_kv // devices)`
  cuts the sequence.
* Each warp group writes its own columns on *all* copies (`dst=peer`), then a barrier; `T.allgather` would
  do as well. Writing the same columns on both is reported: "the copies of 'acc_s_cast' differ".
* `T.allreduce(output, lse, fn=T.lse_merge)` merges attention results; it needs the maximum too, lse =
  log2(sum) + max * scale. Without a logarithm the build warns.
* Any associative function of two tuples may stand in place of `T.lse_merge`.
"""

import math

import numpy as np

import megatile as mt
import megatile.language as T


def flash_mla(batch, heads, kv_heads, seqlen_kv, dim, pe_dim, devices=4, block_H=16, block_N=32):
    dtype, accum_dtype = "f32", "f32"
    scale = math.log2(math.e) / math.sqrt(dim + pe_dim)
    kv_group_num = heads // kv_heads
    valid_block_H = min(block_H, kv_group_num)

    @T.program
    def kernel(
        Q: T.Tensor([batch, heads, dim], dtype),
        Q_pe: T.Tensor([batch, heads, pe_dim], dtype),
        KV: T.Tensor([batch, seqlen_kv, kv_heads, dim], dtype),
        K_pe: T.Tensor([batch, seqlen_kv, kv_heads, pe_dim], dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(device=devices, block=(batch, heads // valid_block_H), threads=256) as (bx, by):
            with T.Scale("device"):
                Q_global = T.view(Q, layout=T.Replica)
                Q_pe_global = T.view(Q_pe, layout=T.Replica)
                KV_global = T.view(KV, layout=lambda i, j, k, l: j // (seqlen_kv // devices))
                K_pe_global = T.view(K_pe, layout=lambda i, j, k, l: j // (seqlen_kv // devices))
                output_global = T.view(Output, layout=T.Replica)
                lse_global = T.alloc([batch, heads], accum_dtype, level="l2")

            with T.Scale("block"):
                Q_shared = T.alloc([valid_block_H, dim], dtype, level="l1")
                Q_pe_shared = T.alloc([valid_block_H, pe_dim], dtype, level="l1")
                KV_shared = T.alloc([block_N, dim], dtype, level="l1")
                K_pe_shared = T.alloc([block_N, pe_dim], dtype, level="l1")
                acc_s = T.alloc([valid_block_H, block_N], accum_dtype, level="l0")
                acc_s_cast = T.alloc([valid_block_H, block_N], dtype, level="l0")
                acc_o = T.alloc([valid_block_H, dim], accum_dtype, level="l0")
                scores_max = T.alloc([valid_block_H], accum_dtype, level="l0")
                scores_max_prev = T.alloc([valid_block_H], accum_dtype, level="l0")
                scores_scale = T.alloc([valid_block_H], accum_dtype, level="l0")
                scores_sum = T.alloc([valid_block_H], accum_dtype, level="l0")
                logsum = T.alloc([valid_block_H], accum_dtype, level="l0")

                head = by * valid_block_H
                cur_kv_head = head // kv_group_num

                T.copy(Q_shared, Q_global[bx, head : head + valid_block_H, :])
                T.copy(Q_pe_shared, Q_pe_global[bx, head : head + valid_block_H, :])
                T.fill(acc_o, 0)
                T.fill(logsum, 0)
                T.fill(scores_max, -T.infinity(accum_dtype))

                loop_range = T.ceildiv(KV_global.shape[1], block_N)
                for k in T.Pipelined(loop_range, num_stages=2):
                    T.copy(KV_shared, KV_global[bx, k * block_N : (k + 1) * block_N, cur_kv_head, :])
                    T.copy(K_pe_shared, K_pe_global[bx, k * block_N : (k + 1) * block_N, cur_kv_head, :])
                    T.clear(acc_s)
                    T.gemm(Q_shared, KV_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
                    T.gemm(Q_pe_shared, K_pe_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)

                    T.copy(scores_max_prev, scores_max)
                    T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                    for i in T.Parallel(valid_block_H):
                        scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                    for i, j in T.Parallel(valid_block_H, block_N):
                        acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                    T.reduce_sum(acc_s, scores_sum, dim=1)

                    with T.Scale("warpgroup") as wg_id, wg_num:
                        mine = T.view(acc_s, layout=T.FullCol)
                        everywhere = T.view(acc_s_cast, layout=T.Replica)
                        width = block_N // wg_num
                        for peer in range(wg_num):  # each group writes its own columns on all
                            T.copy(everywhere[:, wg_id * width : (wg_id + 1) * width], mine, dst=peer)
                        T.barrier()

                    for i in T.Parallel(valid_block_H):
                        logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                    for i, j in T.Parallel(valid_block_H, dim):
                        acc_o[i, j] *= scores_scale[i]
                    T.gemm(acc_s_cast, KV_shared, acc_o)

                for i, j in T.Parallel(valid_block_H, dim):
                    acc_o[i, j] /= logsum[i]
                for i in T.Parallel(valid_block_H):
                    logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
                T.copy(output_global[bx, head : head + valid_block_H, :], acc_o)
                T.copy(lse_global[bx, head : head + valid_block_H], logsum)

            with T.Scale("device"):
                T.allreduce(output_global, lse_global, fn=T.lse_merge)

    return kernel


def reference(q, q_pe, kv, k_pe):
    heads, kv_heads = q.shape[1], kv.shape[2]
    keys, values = np.concatenate([kv, k_pe], axis=-1), kv
    keys, values = (np.repeat(x, heads // kv_heads, axis=2) for x in (keys, values))
    scores = np.einsum("bhd,bshd->bhs", np.concatenate([q, q_pe], axis=-1), keys) / math.sqrt(keys.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.einsum("bhs,bshd->bhd", weights / weights.sum(axis=-1, keepdims=True), values)


def main(machine: str = "dgx-h100", **options) -> None:
    batch, heads, kv_heads, seq, dim, pe_dim = 2, 16, 1, 256, 32, 16
    devices = min(4, mt.machine(machine).count("device"))
    rng = np.random.default_rng(0)
    q = rng.standard_normal((batch, heads, dim), dtype=np.float32)
    q_pe = rng.standard_normal((batch, heads, pe_dim), dtype=np.float32)
    kv = rng.standard_normal((batch, seq, kv_heads, dim), dtype=np.float32)
    k_pe = rng.standard_normal((batch, seq, kv_heads, pe_dim), dtype=np.float32)
    out = np.zeros_like(q)
    program = flash_mla(batch, heads, kv_heads, seq, dim, pe_dim, devices)
    mt.run(program, q, q_pe, kv, k_pe, out, machine=machine, **options)
    np.testing.assert_allclose(out, reference(q, q_pe, kv, k_pe), rtol=1e-4, atol=1e-5)
    print(f"decode of {heads} heads over {seq} keys on {devices} devices of {machine}: equal to NumPy")


if __name__ == "__main__":
    main()
