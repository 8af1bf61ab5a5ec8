"""``collectives/algorithms/in_network.py``: reduction done by the switch itself (NVLS, SHARP), and in a
pipeline with rings between nodes."""

import pytest
from tests.collectives.shared import nccl, us


def test_in_switch_reduction_has_its_own_start_and_share():
    hda = nccl(NVLS_start="20 us", NVLS_share="50 %", NVLS_fill="0")
    rate = 450e9 * 0.873 * 0.5
    assert us(hda, 1 << 30, "in_network", None) == pytest.approx(20 + (1 << 30) / rate * 1e6, rel=0.01)
