"""``core/elementwise.py``: what typed expressions give on arrays."""

from __future__ import annotations

import numpy as np

from megatile.core.operations import OPERATIONS

GIVEN = {
    "pad": {"at0": 1, "at1": 0, "n0": 5, "n1": 4},
    "nest": {"code": "w[j, i] = (exp(a0[i, j]) + s0 for i, j in (3, 3))", "s0": 2},
}
"""Attributes that an operation cannot do without."""


def test_leading_axes_are_a_batch():
    """The meaning on a batch is the meaning on each of its elements: for every operation."""
    rng = np.random.default_rng(0)
    for name, operation in OPERATIONS.items():
        if operation.operands == 0 or name.startswith("attention"):
            continue  # attention takes operands of shapes of its own: test_attention_operations.py
        if name == "library_kernel":
            continue  # it has a time and no data: tests/models/test_plans.py
        more = GIVEN.get(name, {})
        shapes = [(3, 3)] * abs(operation.operands)
        if name.endswith("_onto"):
            shapes[-1] = (3,)
        arrays = [rng.uniform(0.5, 2, (5, *shape)).astype("f4") for shape in shapes]
        together = operation.meaning(*arrays, **more)
        for i in range(5):
            np.testing.assert_allclose(
                together[i], operation.meaning(*[a[i] for a in arrays], **more), rtol=1e-6, err_msg=name
            )
        shape = operation.shape(*shapes, **more)
        assert together.shape[1:] == tuple(shape), name
