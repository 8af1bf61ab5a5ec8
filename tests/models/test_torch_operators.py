"""``models/torch_operators.py``: a forward pass as torch's eager mode runs transformers' modules."""

from __future__ import annotations

import pytest

import megatile as mt


@pytest.mark.parametrize(("name", "known"), [("Llama-3.1-8B", True), ("gpt-oss-20b", False)])
def test_torch_says_which_models_it_does_not_cover(name: str, known: bool) -> None:
    step = mt.model(name).step([(1, 9)], machine="dgx-h100", library="torch")
    assert any("does not cover" in note for note in step.notes) != known
    assert (step.error < 1) == known
