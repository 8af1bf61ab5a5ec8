"""``models/model.py``: ``mt.model``."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.schemes import ModelError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "seed must be an integer of at least 0, got 'x'"),
        ({"prefill": 2}, "prefill must name degrees, got 2"),
        ({"token_budget": float("inf")}, "token_budget must be a non-negative number"),
    ],
)
def test_options_of_wrong_types_are_one_sentence(options: dict, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        mt.model("Llama-3.1-8B").serve(machine="dgx-h100", isl=16, osl=4, **options)
