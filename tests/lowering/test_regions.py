"""``lowering/regions.py``: a region of a tile or tensor as a block of its home, cut where it reaches over
the edge."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from tests.lowering.shared import products_done, tiled_gemm

import megatile as mt


@settings(max_examples=25, deadline=None)
@given(M=st.integers(1, 90), N=st.integers(1, 90), K=st.integers(1, 70), stages=st.integers(1, 4))
def test_edges_of_products(M: int, N: int, K: int, stages: int) -> None:
    rng = np.random.default_rng(M * N + K)
    a, b = rng.integers(-4, 5, (M, K)).astype("f2"), rng.integers(-4, 5, (K, N)).astype("f2")
    prog = tiled_gemm(M, N, K, 32, 16, 16, stages)
    got = mt.execute(prog, a, b, np.full((M, N), np.nan, "f4"), machine="dgx-h100")["C"]
    np.testing.assert_array_equal(got, a.astype("f4") @ b.astype("f4"))


def test_products_stop_at_edges_where_the_engine_clips():
    """Rows and columns are rounded up to the steps of the engine, k is not; other engines do whole tiles."""
    host = mt.machine("cpu", vector_bits=512)
    M, N, K = 141, 300, 70
    done, whole = (
        products_done(tiled_gemm(*size, dtype="f32"), host) for size in ((M, N, K), (192, 320, 96))
    )
    assert whole - done == 2 * (192 * 320 * 96 - 144 * 320 * 70)
    h100 = [products_done(tiled_gemm(*size), "dgx-h100") for size in ((M, N, K), (192, 320, 96))]
    assert h100[0] == h100[1]
