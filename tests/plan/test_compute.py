"""``plan/compute.py``: doing one command on arrays."""

from __future__ import annotations

import numpy as np
import pytest
from tests.plan.execute_cases import builder

from megatile.plan.compute import padded
from megatile.plan.execute import execute


def test_half_precision_rounds_once_per_operation():
    b = builder(1)
    x = b.tile("x", (4,), "bf16", memory="l2", role="input")
    y = b.tile("y", (4,), "bf16", memory="l2", role="output")
    b.compute("fma", y, [x, x, x])
    import ml_dtypes

    data = np.asarray([[1.1, 2.3, -0.7, 100.0]], dtype=ml_dtypes.bfloat16)
    wide = data.astype("f4")
    np.testing.assert_array_equal(
        execute(b.finish(), {"x": data})["y"], (wide * wide + wide).astype(ml_dtypes.bfloat16)
    )


@pytest.mark.parametrize(
    ("shape", "rank", "found"),
    [
        ((5, 2, 3), 2, (5, 2, 3)), ((5, 3), 2, (5, 1, 3)), ((5,), 2, (5, 1, 1)), ((5, 1, 3), 1, (5, 3)),
        ((5, 1, 1, 3), 1, (5, 3)), ((5, 2, 3), 1, (5, 2, 3)), ((5, 1, 2, 3), 1, (5, 1, 2, 3)),
    ],
)  # fmt: skip
def test_axes_of_extent_1_come_and_go_behind_that_of_the_units(shape, rank, found):
    assert padded(np.zeros(shape), rank, 1).shape == found
    assert padded(np.zeros((7, *shape)), rank, 2).shape == (7, *found)
