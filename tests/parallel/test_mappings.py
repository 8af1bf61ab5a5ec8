"""``parallel/mappings.py``: megatron's mappings between regions, forwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.parallel.hosts import on_ranks
from tests.parallel.shared import part, put, values

import megatile.parallel as tp


def test_gather_output_and_whole_inputs() -> None:
    x, w = values(4, 8), values(8, 12)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        column = tp.ColumnParallelLinear(8, 12, dtype="f32", torch=torch, gather_output=True)
        column.weight.copy_(part(w, 1, rank, 4))
        row = tp.RowParallelLinear(
            8, 12, dtype="f32", torch=torch, input_is_parallel=False, skip_bias_add=True
        )
        row.weight.copy_(part(w, 0, rank, 4))
        y, bias = row(put(torch, x))
        assert bias is None
        return column(put(torch, x)).numpy(), y.numpy()

    for one, two in on_ranks(body):
        np.testing.assert_allclose(one, x @ w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(two, x @ w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scatter", "gather"), [("tp", "tp"), ("sequence", "sequence")])
def test_what_is_scattered_can_be_gathered(scatter: str, gather: str) -> None:
    x = values(8, 12)

    def body(rank: int, torch: Any) -> Any:
        tp.initialize_model_parallel(4)
        mine = getattr(tp, f"scatter_to_{scatter}_region")(put(torch, x))
        assert np.array_equal(mine.numpy(), part(x, 1 if scatter == "tp" else 0, rank, 4))
        return getattr(tp, f"gather_from_{gather}_region")(mine).numpy()

    assert all(np.array_equal(got, x) for got in on_ranks(body))
