"""Block-scaled products are products of dequantised factors; what has no counterpart says what to write."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import megatile.tilelang as tilelang
import megatile.tilelang.language as T
from megatile.core.errors import MegatileError

RUN = 16


def product(k: int, block_k: int, turned: bool, whole: bool) -> Any:
    """64 × 32, in steps of ``block_k``; ``whole``: tiles of scales for all of K, not for a step."""
    words = k // (4 * RUN)
    held = words if whole else block_k // (4 * RUN)

    @T.prim_func
    def main(
        A: T.Tensor((64, k), T.float8_e4m3fn),
        B: T.Tensor((32, k) if turned else (k, 32), T.float8_e4m3fn),
        SFA: T.Tensor((64, words), T.uint32),
        SFB: T.Tensor((32, words), T.uint32),
        C: T.Tensor((64, 32), T.float32),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, block_k), T.float8_e4m3fn)
            b = T.alloc_shared((32, block_k) if turned else (block_k, 32), T.float8_e4m3fn)
            sfa, sfb = T.alloc_shared((64, held), T.uint32), T.alloc_shared((32, held), T.uint32)
            c = T.alloc_fragment((64, 32), T.float32)
            T.clear(c)
            for ko in T.serial(k // block_k):
                T.copy(A[0, ko * block_k], a)
                if turned:
                    T.copy(B[0, ko * block_k], b)
                else:
                    T.copy(B[ko * block_k, 0], b)
                T.copy(SFA[0, 0 if whole else ko * held], sfa)
                T.copy(SFB[0, 0 if whole else ko * held], sfb)
                T.mma_gemm_blockscaled(
                    a, b, c, sfa, sfb, transpose_B=turned, k_start=ko * block_k,
                    sf_a_granularity_k=RUN, sf_b_granularity_k=RUN,
                )  # fmt: skip
            T.copy(c, C)

    return main


@pytest.mark.parametrize(("turned", "whole"), [(True, False), (False, False), (True, True)])
def test_factors_are_multiplied_by_their_scales_first(turned: bool, whole: bool) -> None:
    rng, k = np.random.default_rng(3), 256
    a, b = (rng.standard_normal((rows, k)).astype(ml_dtypes.float8_e4m3fn) for rows in (64, 32))
    scales = [rng.uniform(0.25, 4, (rows, k // RUN)).astype(ml_dtypes.float8_e4m3fn) for rows in (64, 32)]
    words = [one.view(np.uint8).view("<u4") for one in scales]
    left, right = (
        f.astype("f4") * np.repeat(s.astype("f4"), RUN, axis=1) for f, s in zip((a, b), scales, strict=True)
    )
    c = np.zeros((64, 32), np.float32)
    tilelang.compile(product(k, 128, turned, whole))(a, b if turned else b.T.copy(), *words, c)
    np.testing.assert_allclose(c, left @ right.T, rtol=1e-4, atol=1e-4)


def _pointer() -> None:
    @T.prim_func
    def main(a: T.ptr):
        with T.Kernel(1):
            pass


def _pair() -> None:
    @T.prim_func
    def main(D: T.Tensor((256, 256), T.float32)):
        with T.ClusterKernel(2, threads=128, cluster_dims=2):
            a, b = T.alloc_shared((128, 64), T.bfloat16), T.alloc_shared((128, 64), T.bfloat16)
            c = T.alloc_tmem((128, 256), T.float32)
            T.tcgen05_gemm(a, b, c, transpose_B=True, use_2cta=True)


def _scales_of_tensor_memory() -> None:
    @T.prim_func
    def main(D: T.Tensor((128, 128), T.float32)):
        with T.Kernel(1, threads=128):
            c = T.alloc_tmem((128, 128), T.float32)
            T.tcgen05_gemm_blockscaled(c, c, c, c, c)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (_pointer, r"T\.ptr has no counterpart in megatile \(try: give tensors as arguments"),
        (_pair, r"\(use_2cta=True\) has no counterpart in megatile \(try: let each block multiply"),
        (_scales_of_tensor_memory, r"T\.tcgen05_gemm_blockscaled has no counterpart.*try: multiply by the"),
    ],
)
def test_what_is_refused_says_what_to_write(statement: Any, says: str) -> None:
    with pytest.raises(MegatileError, match=says):
        statement()
