"""``runtime/host/creation.py``: making tensors."""

from __future__ import annotations

import numpy as np
import pytest

from megatile.runtime.host.context import HostError


def test_conversions(torch) -> None:
    data = np.linspace(0, 1, 8, dtype=np.float32)
    x = torch.tensor(data)
    assert (x.dtype, x.device) == ("f32", "ahbm:0")
    half = x.to(torch.float16)
    np.testing.assert_array_equal(half.numpy(), data.astype(np.float16))
    there = x.to(1)
    assert there.device == "ahbm:1"
    np.testing.assert_array_equal(there.numpy(), data)
    assert x.to("cpu").device == x.cpu().device == "cpu"
    assert x.to(torch.float32) is x
    assert torch.ones(3).tolist() == [1, 1, 1]
    assert torch.tensor([5]).item() == 5
    with pytest.raises(HostError, match="there is no device 4"):
        torch.accelerator.set_device_index(4)
    with pytest.raises(HostError, match="there is no device 'ahbm:9'"):
        x.to("ahbm:9")
