"""``collectives/reference.py``: what a collective must give, in plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.collectives.job import Job
from megatile.collectives.reference import expected, make_inputs


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32"])
@pytest.mark.parametrize("ranks", [2, 9, 64])
def test_products_notice_what_is_missing(dtype, ranks):
    """Small enough to be exact, and not all alike: a product without the first ranks differs."""
    job = Job("all_reduce", ranks, 50, dtype, "prod")
    inputs = make_inputs(job, seed=4)
    right = expected(job, inputs)[0].astype(float)
    assert np.abs(right).max() == 3.0 ** min(3, ranks)
    assert np.array_equal(right, np.prod(np.stack(inputs).astype(float), axis=0))
    assert (right != np.prod(np.stack(inputs[1:]).astype(float), axis=0)).any()


@pytest.mark.parametrize(
    "operation", ["gather", "reduce", "all_gather", "all_reduce", "broadcast", "scatter"]
)
def test_what_is_gathered_or_reduced_is_the_roots(operation):
    job = Job(operation, 4, 8, "f32", root=2)
    found = expected(job, make_inputs(job))
    assert [r for r in range(4) if found[r] is not None] == (
        [2] if operation in ("gather", "reduce") else [0, 1, 2, 3]
    )
