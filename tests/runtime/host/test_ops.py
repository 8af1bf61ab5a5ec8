"""``runtime/host/ops.py``: operations on tensors of one device, as ``tl`` kernels on its PEs."""

from __future__ import annotations

import numpy as np
import pytest

import megatile as mt
from megatile.runtime.host.ops import OperationError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("x @ x", "does not fit"),
        ("x + torch.ones(3, dtype='f32')", "does not fit"),
        ("x + torch.ones(4, 6, device='cpu')", "of the host"),
        ("x.view(5, 5)", r"24 elements are not of shape \(5, 5\)"),
        ("x.sum(2)", "no dimension 2"),
        ("x.narrow(0, 3, 2)", "no elements 3:5"),
        ("x.split([1, 1])", "do not make up 4"),
        ("x.permute(0, 0)", "not an order"),
        ("torch.cat([])", "no tensors"),
        ("torch.cat([x, x.to(torch.float32)])", "does not fit"),
        ("torch.nn.functional.embedding([9], x)", "no row 9"),
        ("x.softmax(0)", "last dimension"),
    ],
)
def test_mistakes_are_reported(call: str, said: str) -> None:
    with mt.host("ahbm") as torch:
        names = {"torch": torch, "x": torch.ones(4, 6, dtype=torch.float16)}
        with pytest.raises(OperationError, match=said):
            eval(call, names)  # noqa: S307


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_sums_over_one_dimension_keep_the_others(dim: int) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    with mt.host("ahbm") as torch:
        found = torch.tensor(data, dtype="f32").sum(dim)
        assert found.shape == data.sum(dim).shape
        np.testing.assert_array_equal(found.numpy(), data.sum(dim))


@pytest.mark.parametrize("device", ["cpu", None])
def test_one_tensor_or_two_are_joined(device: str | None) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    with mt.host("ahbm") as torch:
        where = {} if device is None else {"device": device}
        x = torch.ones(3, 4, dtype=torch.float32, **where).copy_(data)
        np.testing.assert_array_equal(torch.cat([x]).numpy(), data)
        np.testing.assert_array_equal(torch.cat([x, x], dim=1).numpy(), np.concatenate([data, data], 1))
