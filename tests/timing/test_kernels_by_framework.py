"""Kernels by framework: rules against sums by hand, numbers against arrays, which figures are taken, bad
input."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import megatile as mt
from megatile.collectives.planner import predict
from megatile.core.errors import MegatileError
from megatile.timing.device import LIBRARIES
from megatile.timing.formulas import OPERATIONS, kernel_times_us
from megatile.timing.schemes import SCHEMES, scheme, scheme_name

H100 = mt.machine("dgx-h100")
SHAPES = {
    "gemm": {"m": 100, "n": 1000, "k": 3000},
    "grouped_gemm": {"m": 100, "n": 1000, "k": 3000, "groups": 7},
    "attention": {"batch": 5, "queries": 1, "context": 1000, "heads": 12, "kv_heads": 4},
    "mla": {"batch": 5, "queries": 1, "context": 1000, "heads": 16},
    "moe": {
        "tokens": 77,
        "hidden": 2048,
        "inner": 768,
        "topk": 8,
        "experts": 128,
        "expert_parallel": 4,
        "skew": 101,
    },
    "elementwise": {"bytes": 123456},
    "all_reduce": {"ranks": 8, "bytes": 123456},
    "all_gather": {"ranks": 8, "bytes": 123456},
    "moe_dispatch": {"hidden": 2048, "tokens": 100, "topk": 8, "experts": 128},
    "moe_combine": {"hidden": 2048, "tokens": 100, "topk": 8, "experts": 128, "low_latency": 1},
}


def us(operation, dtype="bf16", library="vllm", **extents):
    return kernel_times_us(H100, operation, dtype, library, **extents)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("operation", SHAPES)
def test_numbers_arrays_and_the_public_function_agree(operation, library):
    shape, several = SHAPES[operation], np.arange(1, 4)
    dtypes = (*SCHEMES, "bf16") if OPERATIONS[operation].schemes else ("bf16",)
    for dtype in dtypes:
        one = us(operation, dtype, library, **shape)
        many = us(operation, dtype, library, **{name: value + 0 * several for name, value in shape.items()})
        assert many == pytest.approx([one] * 3)
        told = mt.predict_kernel(
            operation, machine=H100, dtype=dtype, library=library, captured=True, **shape
        )
        assert told.time_us == pytest.approx(one)
        assert told.origin.kind in ("rule", "assumed")
        assert told.error is None or 0 < told.error < 1


def test_an_engine_reduces_few_bytes_by_itself_and_many_by_nccl():
    figures = H100.transports["device"]["custom"].protocols["one_shot"]
    link, step_us = 450e3 * figures.share, figures.step_ps / 1e6
    assert us("all_reduce", ranks=2, bytes=1 << 20) == pytest.approx(step_us + (1 << 20) / link)
    assert us("all_reduce", ranks=4, bytes=1 << 18) == pytest.approx(step_us + 3 * (1 << 18) / link)
    two_shots = 2 * step_us + 2 * 3 / 4 * (1 << 20) / link
    assert us("all_reduce", ranks=4, bytes=1 << 20) == pytest.approx(two_shots)
    in_switch = 2 * step_us + 9 / 8 * (1 << 20) / link
    assert us("all_reduce", ranks=8, bytes=1 << 20) == pytest.approx(in_switch)
    for library in ("vllm", "trtllm", "sglang"):
        nccl = mt.predict_kernel("all_reduce", machine=H100, ranks=8, bytes=1 << 30).time_us
        assert us("all_reduce", library=library, ranks=8, bytes=1 << 30) == pytest.approx(nccl)
    eager = kernel_times_us(H100, "all_reduce", "bf16", "vllm", captured=False, ranks=2, bytes=8)
    assert eager == 20.8
    assert us("all_reduce", ranks=1, bytes=8) == 0


def test_low_latency_exchanges_by_hand():
    figures = H100.kernel("dispatch_low_latency")
    shape = {"hidden": 4096, "tokens": 64, "topk": 8, "experts": 256, "low_latency": 1}
    link = 64 * 8 * 4096 * (1 + 4 / 128) * 7 / 8 / (450e3 * figures.share)
    expected = figures.start_us + 256 * figures.split_us + link
    assert us("moe_dispatch", **shape) == pytest.approx(expected)
    few = us("moe_dispatch", **shape | {"experts": 8})  # every message of a device to one expert
    assert few == pytest.approx(figures.start_us + 8 * figures.split_us + 64 * 8 * figures.wave_us)


def test_a_graph_hides_what_the_host_needs_to_issue_a_call():
    shape = {"m": 64, "n": 4096, "k": 4096}
    eager, captured = (
        mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", captured=c, **shape).time_us
        for c in (False, True)
    )
    assert eager == H100.kernel("gemm_f8_block").issue_us
    assert captured < 15
    few = mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", **shape | {"m": 8}).time_us
    assert few == H100.kernel("gemm_f8_block_few").issue_us
    odd = mt.predict_kernel("gemm", machine=H100, dtype="fp8_block", **shape | {"k": 4097}).time_us
    assert odd == H100.kernel("gemm_f8_block_odd").issue_us


def test_the_cache_has_a_type_of_its_own():
    shape = {"batch": 64, "queries": 1, "context": 8191, "heads": 32, "kv_heads": 8}
    for library in ("vllm", "trtllm"):
        wide, narrow = (
            kernel_times_us(H100, "attention", "bf16", library, kv, **shape) for kv in ("bf16", "fp8")
        )
        assert 0.4 < narrow / wide < 0.95
    assert kernel_times_us(H100, "attention", "bf16", "vllm", "bf16", **shape) == us("attention", **shape)
    with pytest.raises(MegatileError, match="gemm has no cache"):
        mt.predict_kernel("gemm", machine=H100, kv_dtype="fp8", m=1, n=1, k=1)


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


def test_the_busiest_rank_counts():
    layer = {"tokens": 16384, "hidden": 4096, "inner": 1536, "topk": 8, "experts": 128}
    even, skewed = (us("moe", **layer, expert_parallel=16, skew=s) for s in (0, 120))
    assert skewed > 1.3 * even
    alone = us("moe", **layer, skew=120)
    assert skewed < alone
    weights = 3 * 4096 * 1536 * 2 / 3350e3
    one = us("moe", **layer | {"tokens": 1})
    assert one > 8 * weights
    assert us("moe", **layer, gated=0) < us("moe", **layer)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LIBRARIES),
    st.sampled_from(["bf16", "fp8", "fp8_block", "int4", "mxfp4", "nvfp4"]),
    *[st.integers(1, 1 << 14)] * 3,
    st.sampled_from(["dgx-h100", "b200-8", "hgx-a100", "mi300x-8"]),
)
def test_no_product_beats_the_memory_or_shrinks_with_more_work(library, dtype, m, n, k, name):
    hda = mt.machine(name)
    found = kernel_times_us(hda, "gemm", dtype, library, m=m, n=n, k=k)
    memory = max(layer.bandwidth for layer in hda.memories if layer.name == "hbm")
    assert math.isfinite(found)
    assert found >= n * k * scheme(scheme_name(dtype)).weight / memory * 1e6
    more = {"m": 2 * m, "n": n, "k": k}
    if (m < 32) == (2 * m < 32):
        assert kernel_times_us(hda, "gemm", dtype, library, **more) >= found * (1 - 1e-9)


def test_figures_of_another_framework_say_so():
    shape = SHAPES["moe"]
    own = mt.predict_kernel("moe", machine=H100, library="vllm", **shape)
    borrowed = mt.predict_kernel("moe", machine=H100, library="sglang", **shape)
    assert own.time_us == borrowed.time_us
    assert (own.origin.kind, borrowed.origin.kind) == ("rule", "assumed")
    assert "estimate: as vllm" in borrowed.origin.source
    assert own.error < borrowed.error
    elsewhere = mt.predict_kernel("moe", machine="b200-8", library="vllm", **shape)
    assert elsewhere.origin.kind == "assumed"
    assert elsewhere.error >= 0.2
    ours = mt.predict_kernel("gemm", machine=H100, library="trtllm", m=64, n=64, k=64)
    assert "trtllm.gemm" in ours.origin.source


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"library": "vlm"}, "library 'vlm' is unknown (try: did you mean 'vllm'"),
        ({"library": 3}, "library 3 is unknown"),
        ({"dtype": "fp8_blok"}, "did you mean 'fp8_block'"),
        ({"dtype": "f17"}, "dtype 'f17' is unknown"),
    ],
)
def test_bad_input_is_one_clear_error(asked, message):
    with pytest.raises(MegatileError) as caught:
        mt.predict_kernel("gemm", machine=H100, m=1, n=1, k=1, **asked)
    assert message in str(caught.value)


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_captured_collective_is_that_of_predict(operation: str, nbytes: int) -> None:
    """RCCL takes other kernels in graphs: both ways to ask choose them."""
    asked = {"machine": "mi300x-8", "ranks": 8}
    found = predict(operation, nbytes=nbytes, launch=False, **asked)
    kernel = mt.predict_kernel(operation, bytes=nbytes, captured=True, **asked)
    assert kernel.time_us == pytest.approx(found.time_us, rel=0.02)
    assert kernel.model == found.model
