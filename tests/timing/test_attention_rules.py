"""``timing/attention_rules.py``: how long attention kernels take."""

import numpy as np
import pytest
from tests.timing.kernels_by_framework_cases import H100, us
from tests.timing.shared import RATES, predict

import megatile as mt


def test_decoding_reads_the_cache_once(tmp_path):
    found = predict("attention", batch=64, queries=1, context=65535, heads=32, kv_heads=8).time_us
    least = 2 * 2 * 64 * 65536 * 8 * 128 / RATES["bandwidth"] * 1e6
    assert least < found < 1.15 * least


def test_attention_grows_with_keys_and_shrinks_with_a_window():
    shape = {"batch": 4, "heads": 32, "kv_heads": 8, "queries": 4096}
    whole, half = (predict("attention", **shape, context=c).time_us for c in (8192, 0))
    assert half < whole
    assert predict("attention", **shape, context=8192, window=256).time_us < half


def test_sequences_of_one_launch_share_its_start():
    lengths = np.array([1000, 1000, 1000, 1000])
    heads = {"queries": 1, "heads": 32, "kv_heads": 8}
    together = us("attention", batch=1 + 0 * lengths, context=lengths, ragged=1, **heads)
    assert together == pytest.approx(us("attention", batch=4, context=1000, **heads))
    mixed = us(
        "attention", batch=np.array([1, 64]), queries=np.array([512, 1]), context=np.array([0, 2000]),
        ragged=1, heads=32, kv_heads=8,
    )  # fmt: skip
    alone = us("attention", batch=1, queries=512, context=0, heads=32, kv_heads=8)
    assert (
        alone < mixed < alone + us("attention", batch=64, queries=1, context=2000, heads=32, kv_heads=8) * 2
    )
    latent = us("mla", batch=1 + 0 * lengths, context=lengths, queries=1, heads=16, ragged=1)
    assert latent == pytest.approx(us("mla", batch=4, context=1000, queries=1, heads=16))


def test_attention_backward_without_a_mask_and_wide_heads():
    shape = {"batch": 4, "queries": 4096, "heads": 32, "kv_heads": 8}
    forward = us("attention", **shape)
    assert 2 < us("attention", backward=1, **shape) / forward < 2.6
    assert 1.6 < us("attention", causal=0, **shape) / forward < 2.1
    assert us("attention", **shape | {"head_dim": 512}) > 3 * forward
    assert us("attention", window=128, **shape) < 0.4 * forward


def test_wide_heads_are_decoded_one_sequence_after_another():
    shape = {"queries": 1, "context": 127, "heads": 8, "kv_heads": 1, "head_dim": 512}
    few, many = (us("attention", batch=b, **shape) for b in (8, 64))
    figures = H100.kernel("decode_wide")
    moved = 56 * 128 * 2 * 2 * 512 / (3350e3 * figures.bandwidth)
    assert many - few == pytest.approx(56 * figures.wave_us + moved)
    told = mt.predict_kernel("attention", machine=H100, batch=8, **shape)
    assert "decode_wide" in told.origin.source
    assert us("attention", library="trtllm", batch=8, **shape) < few  # TensorRT-LLM has no such kernel


def test_latent_attention_reads_the_latent_once():
    shape = {"batch": 128, "queries": 1, "context": 8191, "heads": 16}
    found = us("mla", **shape)
    least = 128 * 8192 * 576 * 2 / 3350e3
    assert least < found < 1.3 * least
    prefill = us("mla", batch=1, queries=4096, context=0, heads=16)
    assert prefill == pytest.approx(
        us("attention", batch=1, queries=4096, heads=16, kv_heads=16, head_dim=160)
    )
