"""``timing/engine_rules.py``: how long kernels of inference engines and of DeepEP take."""

import pytest
from tests.timing.kernels_by_framework_cases import H100, us

import megatile as mt
from megatile.timing.formulas import kernel_times_us


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
