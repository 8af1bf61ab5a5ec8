"""``timing/exchange_rules.py``: how long operations between devices take."""

import pytest
from tests.timing.kernels_by_framework_cases import H100, us


def test_low_latency_exchanges_by_hand():
    figures = H100.kernel("dispatch_low_latency")
    shape = {"hidden": 4096, "tokens": 64, "topk": 8, "experts": 256, "low_latency": 1}
    link = 64 * 8 * 4096 * (1 + 4 / 128) * 7 / 8 / (450e3 * figures.share)
    expected = figures.start_us + 256 * figures.split_us + link
    assert us("moe_dispatch", **shape) == pytest.approx(expected)
    few = us("moe_dispatch", **shape | {"experts": 8})  # every message of a device to one expert
    assert few == pytest.approx(figures.start_us + 8 * figures.split_us + 64 * 8 * figures.wave_us)
