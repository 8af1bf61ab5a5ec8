"""``models/deployment.py``: a deployment."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.schemes import ModelError


@pytest.mark.parametrize(
    ("division", "said"),
    [
        ({"tp": 3}, "tp 3 does not divide 64 heads"),
        ({"tp": 0}, "tp must be a positive integer, got 0"),
        ({"tp": 2.0}, "tp must be a positive integer"),
        ({"tp": 16}, "needs 16 devices, 'dgx-h100' has 8"),
        ({"ep": 2, "tp": 2}, "has no experts"),
        ({"dtype": "fp3"}, "dtype 'fp3' is unknown"),
        ({"kv_dtype": "int2"}, "KV cache type 'int2' is unknown"),
        ({"library": "vlm"}, "library 'vlm' is unknown"),
        ({"max_seqs": 3}, "has no setting 'max_seqs'"),
        ({"memory_share": 1.5}, "memory_share must be in"),
    ],
)
def test_bad_divisions_are_one_sentence(division: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        mt.model("Llama-3.1-70B").memory(machine="dgx-h100", **division)
    assert said in str(caught.value)


def test_experts_must_divide() -> None:
    with pytest.raises(ModelError, match="ep 3 does not divide tp"):
        mt.model("Mixtral-8x7B-v0.1").memory(machine="dgx-h100", tp=4, ep=3)
