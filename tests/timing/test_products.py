"""``timing/products.py``: how long products of library kernels take."""

import math

import pytest
from hypothesis import given, settings, strategies as st
from tests.timing.kernels_by_framework_cases import us
from tests.timing.shared import RATES, predict

import megatile as mt
from megatile.hda import HDA
from megatile.timing.device import LIBRARIES
from megatile.timing.formulas import kernel_times_us
from megatile.timing.schemes import scheme, scheme_name

FIGURES = {
    "kernels": [
        {"name": "gemm", "share": "50 %", "rows": 64, "columns": 64, "bandwidth": "50 %", "exposed": "25 %",
         "start": "2 us", "split": "1 us"},
        {"name": "gemm_f8", "share": "50 %", "rows": 64, "columns": 64, "bandwidth": "100 %",
         "exposed": "0 %", "start": "1 us"},
        {"name": "quantise", "share": "100 %", "rows": 1, "bandwidth": "100 %", "exposed": "100 %",
         "start": "4 us", "wave": "3 us"},
    ]
}  # fmt: skip


def plain(tmp_path):
    """dgx-h100 with round figures, as a file of one's own."""
    import yaml

    file = tmp_path / "plain.yaml"
    file.write_text(yaml.safe_dump({"name": "plain", "extends": "dgx-h100", **FIGURES}), encoding="utf-8")
    return HDA.from_yaml(file)


def test_a_gemm_by_hand(tmp_path):
    m, n, k = 1000, 4096, 512
    waves = math.ceil(math.ceil(m / 64) * n // 64 / 132)
    work = waves * 2 * 64 * 64 * k / (RATES["peak"] / 132 / 2) * 1e6
    traffic = 2 * ((m + n) * k + m * n) / (RATES["bandwidth"] / 2) * 1e6
    expected = 2 + max(work, traffic) + 0.25 * min(work, traffic)
    assert predict(machine=plain(tmp_path), m=m, n=n, k=k).time_us == pytest.approx(expected)


def test_a_long_narrow_gemm_is_divided(tmp_path):
    k = 1 << 20
    whole = 2 * 64 * 64 * k / (RATES["peak"] / 132 / 2) * 1e6
    traffic = 2 * (128 * k + 64 * 64) / (RATES["bandwidth"] / 2) * 1e6
    expected = 2 + max(whole / 32 + 1, traffic) + 0.25 * min(whole / 32 + 1, traffic)
    assert predict(machine=plain(tmp_path), m=64, n=64, k=k).time_us == pytest.approx(expected)


def test_eight_bits_are_quantised_first_and_not_divided(tmp_path):
    hda, shape = plain(tmp_path), {"m": 133, "n": 64, "k": 4096, "dtype": "fp8"}
    work = 2 * 64 * 64 * 4096 / (RATES["peak"] / 132) * 1e6
    assert predict(machine=hda, **shape, quantised=1).time_us == pytest.approx(1 + work)
    quantise = 4 + 2 * 3 + 133 * 4096 * 3 / RATES["bandwidth"] * 1e6
    assert predict(machine=hda, **shape).time_us == pytest.approx(1 + work + quantise)


def test_experts_that_no_token_meets_cost_nothing():
    layer = {"hidden": 4096, "inner": 2048, "topk": 8, "tensor_parallel": 1, "expert_parallel": 1}
    few = predict(operation="moe", tokens=1, experts=256, **layer)
    all_of_them = predict(operation="moe", tokens=4096, experts=256, **layer)
    weights = 8 * 3 * 4096 * 2048 * 2 / 3.35e12 * 1e6
    assert weights < few.time_us < 4 * weights
    assert all_of_them.time_us > 256 * 3 * 4096 * 2048 * 2 / 3.35e12 * 1e6
    halves = predict(operation="moe", tokens=4096, experts=256, **layer | {"expert_parallel": 2})
    assert halves.time_us < 0.6 * all_of_them.time_us
    blocks, whole = (
        predict(operation="moe", dtype=d, tokens=64, experts=256, **layer) for d in ("fp8_block", "fp8")
    )
    assert whole.time_us > 2 * blocks.time_us  # weights with one scale come at a quarter of the rate


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
