"""``runtime/host/tensor.py``: what tensors do."""

from __future__ import annotations

import numpy as np

import megatile as mt


def test_numpy_reads_a_tensor() -> None:
    with mt.host("ahbm") as torch:
        found = np.asarray(torch.full((2, 2), 3))
        assert (found.dtype, found.sum()) == (np.float16, 12)


def test_tensors_of_the_host_compute_with_each_other() -> None:
    data = np.arange(6, dtype=np.float32)
    with mt.host("ahbm") as torch:
        x = torch.ones(6, dtype=torch.float32, device="cpu").copy_(data)
        np.testing.assert_array_equal((x + x).numpy(), 2 * data)
        np.testing.assert_array_equal((x * 3).numpy(), 3 * data)
