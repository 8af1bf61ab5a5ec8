"""The README's own GEMM and FlashMLA, as they stand there: every mistake is diagnosed, with what to write
instead."""

import warnings

import numpy as np
import pytest

import megatile as mt
import megatile.language as T
from megatile.core.errors import MegatileError
from megatile.language.tile.errors import ProgramError, ProgramWarning

M, N, K = 64, 64, 64
block_M, block_N, block_K = 32, 32, 16
dtype, accum_dtype = "f32", "f32"


def test_gemm_misspelt_device() -> None:
    @T.program
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(
            deivce=(4),
            block=(T.ceildiv(N, block_N), T.ceildiv(M, block_M)),
            threads=256,
        ):
            with T.Scale("device"):
                T.view(A, layout=T.FullCol)

    with pytest.raises(ProgramError, match=r"there is no scale 'deivce'.*did you mean 'device'\?"):
        gemm.build()


def gemm_of_the_readme(bound: bool):
    """With ``device`` spelt right; ``bound`` adds ``as (bx, by)``."""
    if not bound:

        @T.program
        def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
            with T.Kernel(device=(4), block=(T.ceildiv(N, block_N), T.ceildiv(M, block_M)), threads=256):
                with T.Scale("block"):
                    A_local = T.alloc((block_M, block_K), dtype, level="l0")
                    T.copy(A_local, A[by * block_M, 0])

        return gemm

    @T.program
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(device=(4), block=(T.ceildiv(N, block_N), T.ceildiv(M, block_M)), threads=256) as (
            bx,
            by,
        ):
            with T.Scale("device"):
                A_global = T.view(A, layout=T.FullCol)
                B_global = T.view(B, layout=T.FullRow)
                C_global = T.view(C, layout=T.Replica)

            with T.Scale("block"):
                A_local = T.alloc((block_M, block_K), dtype, level="l0")
                B_local = T.alloc((block_K, block_N), dtype, level="l0")
                C_local = T.alloc((block_M, block_N), accum_dtype, level="l0")
                T.clear(C_local)

                for k in T.Pipelined(T.ceildiv(A_global.shape[1], block_K), num_stages=3):
                    with T.Scale("warpgroup") as wg_id, wg_num:
                        A_local_wg = T.view(A_local, layout=T.FullCol)
                        B_local_wg = T.view(B_local, layout=T.FullRow)
                        C_local_wg = T.view(C_local, layout=T.Replica)
                        T.copy(A_local_wg, A_global[by * block_M, k * block_K])
                        T.copy(B_local_wg, B_global[k * block_K, bx * block_N])
                        T.gemm(A_local_wg, B_local_wg, C_local_wg)

                        # Allreduce C_local_wg through software-defined channel on L1
                        T.allreduce(C_local_wg)
                T.copy(C_global[by * block_M, bx * block_N], C_local)

            with T.Scale("device") as dev_id, dev_num:
                # Allreduce C on L2
                T.allreduce(C_global)

    return gemm


def test_gemm_unbound_coordinates() -> None:
    with pytest.raises(ProgramError) as caught:
        gemm_of_the_readme(bound=False).build()
    text = str(caught.value)
    assert "'by' is not defined" in text
    assert "bind it with 'as'" in text
    assert "T.copy(A_local, A[by * block_M, 0])" in text


def test_gemm_reduces_its_accumulator_in_the_loop() -> None:
    with pytest.warns(
        ProgramWarning, match="reduces an accumulator carried by loop 'k'.*move it after the loop"
    ):
        gemm_of_the_readme(bound=True).build()


def test_gemm_with_the_reduction_in_the_loop_is_wrong() -> None:
    """With one step per device nothing is summed twice; with several the result shows it."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((M, K), dtype=np.float32), rng.standard_normal((K, N), dtype=np.float32)
    global block_K
    wrong = []
    for size in (16, 8):
        block_K = size
        c = np.zeros((M, N), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProgramWarning)
            mt.run(gemm_of_the_readme(bound=True), a, b, c)
        wrong.append(not np.allclose(c, a @ b, atol=1e-3))
    block_K = 16
    assert wrong == [False, True]


def flash_mla_of_the_readme(
    *,
    barrier=False,
    own_columns=False,
    keep_maximum=False,
    log=False,
    merge=True,
    scale=None,
    divide=False,
    bound=True,
):
    """The README's FlashMLA with its mistakes, each of which an argument repairs."""
    batch, heads, kv_head_num, seqlen_kv, dim, pe_dim, block_H, block_N = 1, 16, 1, 128, 16, 8, 16, 32
    kv_group_num = heads // kv_head_num if not divide else 8
    fn = T.lse_merge if merge else ...
    if bound:
        VALID_BLOCK_H = block_H

    @T.program
    def flash_mla(
        Q: T.Tensor([batch, heads, dim], dtype),
        Q_pe: T.Tensor([batch, heads, pe_dim], dtype),
        KV: T.Tensor([batch, seqlen_kv, kv_head_num, dim], dtype),
        K_pe: T.Tensor([batch, seqlen_kv, kv_head_num, pe_dim], dtype),
        Output: T.Tensor([batch, heads, dim], dtype),
    ):
        with T.Kernel(device=(4), block=(batch, heads // min(block_H, heads)), threads=256) as (bx, by):
            with T.Scale("device"):
                Q_global = T.view(Q, layout=T.Replica)
                Q_pe_global = T.view(Q_pe, layout=T.Replica)
                KV_global = T.view(KV, layout=lambda i, j, k, l: j // (seqlen_kv // 4))
                K_pe_global = T.view(K_pe, layout=lambda i, j, k, l: j // (seqlen_kv // 4))
                output_global = T.view(Output, layout=T.Replica)
                logsum_global = T.alloc([batch, heads], accum_dtype, level="l2")

            with T.Scale("block"):
                Q_shared = T.alloc([block_H, dim], dtype, level="l1")
                Q_pe_shared = T.alloc([block_H, pe_dim], dtype, level="l1")
                KV_shared = T.alloc([block_N, dim], dtype, level="l1")
                K_pe_shared = T.alloc([block_N, pe_dim], dtype, level="l1")

                acc_s = T.alloc([block_H, block_N], accum_dtype, level="l0")
                acc_s_cast = T.alloc([block_H, block_N], dtype, level="l0")
                acc_o = T.alloc([block_H, dim], accum_dtype, level="l0")
                scores_max = T.alloc([block_H], accum_dtype, level="l0")
                scores_max_prev = T.alloc([block_H], accum_dtype, level="l0")
                scores_scale = T.alloc([block_H], accum_dtype, level="l0")
                scores_sum = T.alloc([block_H], accum_dtype, level="l0")
                logsum = T.alloc([block_H], accum_dtype, level="l0")

                cur_kv_head = by // (kv_group_num // block_H)

                T.copy(Q_shared, Q_global[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, :])
                T.copy(Q_pe_shared, Q_pe_global[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, :])
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
                    if not keep_maximum:
                        T.fill(scores_max, -T.infinity(accum_dtype))
                    T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                    for i in T.Parallel(block_H):
                        scores_scale[i] = T.exp2(scores_max_prev[i] * scale - scores_max[i] * scale)
                    for i, j in T.Parallel(block_H, block_N):
                        acc_s[i, j] = T.exp2(acc_s[i, j] * scale - scores_max[i] * scale)
                    T.reduce_sum(acc_s, scores_sum, dim=1)

                    with T.Scale("warpgroup") as wg_id, wg_num:
                        acc_s_local = T.view(acc_s, layout=T.FullCol)
                        acc_s_cast_local = T.view(acc_s_cast, layout=T.Replica)
                        if own_columns:
                            at = wg_id * (block_N // 2)
                            T.copy(acc_s_cast_local[:, at : at + block_N // 2], acc_s_local)
                            T.copy(
                                acc_s_cast_local[:, at : at + block_N // 2],
                                acc_s_local,
                                dst=(wg_id + 1) % wg_num,
                            )
                        else:
                            T.copy(acc_s_cast_local[:, 0 : block_N // 2], acc_s_local)
                            # transfer on l0 using l1
                            T.copy(
                                acc_s_cast_local[:, block_N // 2 : block_N],
                                acc_s_local,
                                dst=(wg_id + 1) % wg_num,
                            )
                        if barrier:
                            T.barrier()

                    for i in T.Parallel(block_H):
                        logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                    for i, j in T.Parallel(block_H, dim):
                        acc_o[i, j] *= scores_scale[i]
                    T.gemm(acc_s_cast, KV_shared, acc_o)
                for i, j in T.Parallel(block_H, dim):
                    acc_o[i, j] /= logsum[i]
                if log:
                    for i in T.Parallel(block_H):
                        logsum[i] = T.log2(logsum[i]) + scores_max[i] * scale
                T.copy(output_global[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H, :], acc_o)
                T.copy(logsum_global[bx, by * VALID_BLOCK_H : (by + 1) * VALID_BLOCK_H], logsum)

            with T.Scale("device"):
                # AllReduce on L2
                T.allreduce(output_global, logsum_global, fn=fn)

    return flash_mla


def arrays():
    rng = np.random.default_rng(0)
    shapes = [(1, 16, 16), (1, 16, 8), (1, 128, 1, 16), (1, 128, 1, 8)]
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes] + [np.zeros((1, 16, 16), np.float32)]


REPAIRED = {"scale": 0.3, "own_columns": True, "keep_maximum": True, "log": True, "barrier": True}


def test_flash_mla_repaired_is_right() -> None:
    q, q_pe, kv, k_pe, out = arrays()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProgramWarning)
        mt.run(flash_mla_of_the_readme(**REPAIRED), q, q_pe, kv, k_pe, out)
    scores = np.einsum("bhd,bsod->bhs", q, kv) + np.einsum("bhd,bsod->bhs", q_pe, k_pe)
    weights = np.exp2(0.3 * (scores - scores.max(axis=-1, keepdims=True)))
    expected = np.einsum("bhs,bsod->bhd", weights / weights.sum(axis=-1, keepdims=True), kv)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_flash_mla_misplaced_parenthesis_is_not_python() -> None:
    text = "T.Kernel(device=(4), block=(batch, heads // min(block_H, kv_group_num), threads=256))"
    with pytest.raises(SyntaxError):
        compile(text, "readme", "eval")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"bound": False},
            ProgramError,
            r"'VALID_BLOCK_H' is not defined.*define 'VALID_BLOCK_H' before the kernel",
        ),
        ({"divide": True}, ProgramError, r"divided by zero"),
        ({"merge": False}, ProgramError, r"fn=Ellipsis.*fn=T.lse_merge.*log2\(sum\) \+ max \* scale"),
        (
            {"own_columns": False},
            MegatileError,
            r"copies of 'acc_s_cast' differ.*T.allgather.*its own part on all",
        ),
    ],
    ids=["unbound", "divides-by-zero", "merge-function", "exchange"],
)
def test_flash_mla_mistakes_are_errors(changes, error, message) -> None:
    with pytest.raises(error, match=f"(?s){message}") as caught:
        mt.run(flash_mla_of_the_readme(**{**REPAIRED, **changes}), *arrays())
    assert caught.value.place is not None
    assert caught.value.place.line is not None


def test_flash_mla_scale_is_named_with_its_line() -> None:
    @T.program
    def kernel(X: T.Tensor((8,), dtype)):
        with T.Kernel(block=1):
            x = T.alloc((8,), dtype)
            T.copy(x, X)
            for i in T.Parallel(8):
                x[i] = x[i] * scale

    with pytest.raises(ProgramError, match=r"'scale' is not defined") as caught:
        kernel.build()
    assert "x[i] = x[i] * scale" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_maximum": False}, r"running maximum in 'scores_max' is dropped.*keeps max\(prev, cur\)"),
        (
            {"log": False},
            r"merges 'logsum_global', which is not a logarithm.*lse = log2\(sum\) \+ max \* scale",
        ),
    ],
    ids=["maximum-dropped", "merge-without-maximum"],
)
def test_flash_mla_mistakes_are_warned_of(changes, message) -> None:
    with pytest.warns(ProgramWarning, match=message):
        flash_mla_of_the_readme(**{**REPAIRED, **changes}).build()
