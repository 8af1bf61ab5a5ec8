"""Models of transformers train on divided sequences as in one process."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from tests.attention.attention_huggingface import check_models
from tests.attention.attention_processes import run_ranks


def test_tiny_models_train_as_in_one_process():
    for rank, (answer, error) in enumerate(run_ranks(check_models, 4, timeout=300.0)):
        assert error is None, f"rank {rank}:\n{error}"
        assert not answer[0], f"rank {rank}: {answer[0][:5]}"
        assert answer[1] > 100
