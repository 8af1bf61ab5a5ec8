"""A sample of random calls; ``python -m tests.attention.attention_random`` runs 2000 on 1 to 9 ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: the attention functions cannot run")

from tests.attention.attention_random import outcomes


@pytest.mark.parametrize("ranks", [2, 5])
def test_random_calls_are_right_or_refused(ranks):
    right, refused, problems = outcomes(range(1000 * ranks, 1000 * ranks + 20), ranks)
    assert not problems, "\n".join(problems)
    assert right > 8
    assert right + refused == 20
