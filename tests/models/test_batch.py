"""``models/batch.py``: the tokens of one forward pass."""

from __future__ import annotations

import pytest

import megatile as mt
from megatile.models.batch import Batch
from megatile.models.schemes import ModelError


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ([], "needs at least one request"),
        ([(0, 5)], "new must be at least 1"),
        ([(1, -1)], "cached at least 0"),
        ([1, 2], "a batch is a list of"),
        ([(1.5, 2)], "whole numbers"),
        (7, "a batch is a list of"),
        ([(10**12, 0)], "holds at most"),
    ],
)
def test_bad_batches_are_one_sentence(batch: object, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        mt.model("Llama-3.1-8B").step(batch, machine="dgx-h100")
    assert said in str(caught.value)


def test_a_batch_of_equal_requests_takes_no_list_of_them() -> None:
    assert Batch.equal(3, 1, 7) == Batch.of([(1, 7)] * 3)
    with pytest.raises(ModelError, match="a step holds at most"):
        Batch.equal(10**40, 1, 1)
