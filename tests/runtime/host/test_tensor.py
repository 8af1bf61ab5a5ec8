"""``runtime/host/tensor.py``: what tensors do."""

from __future__ import annotations

import numpy as np

import megatile as mt


def test_numpy_reads_a_tensor() -> None:
    with mt.host("ahbm") as torch:
        found = np.asarray(torch.full((2, 2), 3))
        assert (found.dtype, found.sum()) == (np.float16, 12)
