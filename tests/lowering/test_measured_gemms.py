"""Predicted products beside measured ones (benchmarks/data/tilelang_gemm.csv); all rows: ``make bench``."""

import numpy as np
import pytest

import megatile as mt
from bench_programs import (
    ALLOWED,
    ALLOWED_ATTENTION,
    MEDIAN_ATTENTION,
    P90_ATTENTION,
    Attention,
    flash_attention,
    measured,
    measured_attention,
    predicted_tflops,
)


@pytest.mark.parametrize("k", ["256", "1024"])
def test_a_product_on_an_h100_is_predicted(k: str) -> None:
    (row,) = (row for row in measured() if row["k"] == k)
    assert predicted_tflops(row) == pytest.approx(float(row["tflops"]), rel=ALLOWED)


def test_attention_on_an_h100_is_predicted() -> None:
    figure = measured_attention()[0][0]
    assert figure.predicted_us() == pytest.approx(figure.us, rel=ALLOWED)


def test_a_larger_batch_keeps_its_keys_in_the_cache() -> None:
    """Twice the batch takes twice as long: blocks of heads that share keys run at the same time."""
    small, large = (
        mt.simulate(flash_attention(batch, 16, 16, 4096, 128), machine="dgx-h100", record=False).time_ps
        for batch in (4, 8)
    )
    assert large == pytest.approx(2 * small, rel=0.03)


def test_rows_of_every_batch_are_compared() -> None:
    assert {a.batch for a in measured_attention()[0][1:]} == {1, 2, 4, 8, 16, 32, 64, 128}


@pytest.mark.parametrize(
    ("shape", "us"),
    [((1, 12, 12, 256, 64), 17.9), ((2, 4, 2, 512, 128), 21.0), ((16, 24, 2, 128, 64), 22.5)],
)
def test_short_calls_are_three_kernels(shape: tuple[int, ...], us: float) -> None:
    """Rows of attention_prefill_h100: most of their time is launches and the cache."""
    assert Attention(*shape, us, "vLLM").predicted_us() == pytest.approx(us, rel=ALLOWED_ATTENTION)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_predicted_attention_computes_attention(ragged: bool, batch: int) -> None:
    heads, kv_heads, seq, dim = 2, 1, 160, 16
    kernel = flash_attention(batch, heads, kv_heads, seq, dim, rows=16, ragged=ragged, section=2)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batch, n, seq, dim)).astype("f2") for n in (heads, kv_heads, kv_heads))
    packed = q.transpose(0, 2, 1, 3).reshape(batch, kv_heads, -1, dim)  # one key head
    o = np.zeros_like(packed)
    starts = (np.arange(batch) * seq * heads).astype("i4")
    tables = starts, np.full(batch, seq, "i4"), np.zeros((batch, 2), "i4")
    rows = packed.reshape(1, -1, dim)
    mt.run(kernel, rows, k, v, o, *tables)
    result = o.reshape(batch, seq, heads, dim).transpose(0, 2, 1, 3)
    score = q.astype("f4") @ k.astype("f4").swapaxes(2, 3) / np.sqrt(dim)
    weight = np.exp(np.where(np.tril(np.ones((seq, seq), bool)), score, -np.inf))
    np.testing.assert_allclose(result, weight @ v.astype("f4") / weight.sum(-1, keepdims=True), atol=4e-3)
    np.testing.assert_array_equal(mt.execute(kernel, rows, k, v, 0 * o, *tables)["Out"], o)


def test_calls_of_vllm_are_within_their_bars() -> None:
    """The shortest call of every batch among those of the accuracy page; all of them: ``make bench``."""
    chosen: dict[int, Attention] = {}
    for a in sorted(measured_attention()[0][1:], key=lambda a: a.blocks * a.seq):
        chosen.setdefault(a.batch, a)
    errors = sorted(abs(a.predicted_us() / a.us - 1) for a in chosen.values())
    assert len(errors) == 8
    assert 100 * np.median(errors) <= MEDIAN_ATTENTION
    assert 100 * np.quantile(errors, 0.9) <= P90_ATTENTION
