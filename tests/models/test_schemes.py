"""``models/schemes.py``: quantisation schemes."""

from __future__ import annotations

import pytest
from tests.models.shared import llama

from megatile.models.config import read_config


@pytest.mark.parametrize(
    ("quantisation", "scheme"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8_block"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_algo": "NVFP4"}, "fp4"),
        (
            {"quant_method": "compressed-tensors",
             "config_groups": {"g": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}}},
            "fp8",
        ),
    ],
)  # fmt: skip
def test_quantisation_is_read(quantisation: dict[str, object], scheme: str) -> None:
    assert read_config(llama(quantization_config=quantisation)).scheme == scheme
