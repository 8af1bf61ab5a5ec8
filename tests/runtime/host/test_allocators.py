"""``runtime/host/allocators.py``: device memory."""

from __future__ import annotations

import gc

import pytest

import megatile as mt
from megatile.runtime.host.allocators import AllocationError
from megatile.runtime.host.storage import TensorError


def test_memory_comes_back(torch) -> None:
    pool = torch.memory.pe(0, 0, 0).pools["hbm"]
    free = pool.free_bytes
    x = torch.zeros(1 << 20, name="x")
    assert pool.free_bytes < free
    x.free()
    assert pool.free_bytes == free
    for use in (x.numpy, lambda: x[0], lambda: torch.launch("k", print, x)):
        with pytest.raises(TensorError, match="'x' is used after it was freed"):
            use()
    with pytest.raises(AllocationError, match="'x' was already freed"):
        x.free()
    y = torch.zeros(1 << 20)
    assert pool.free_bytes < free
    del y
    gc.collect()
    assert pool.free_bytes == free
    with pytest.raises(
        AllocationError, match=r"hbm of sip0/cube0/pe0: 7 GiB asked for tensor 'big', 6 GiB free"
    ):
        torch.empty(7 << 29, dtype="f16", name="big")
    assert torch.zeros(4).tolist() == [0, 0, 0, 0]


def test_every_machine_has_its_own_pools() -> None:
    with mt.host("dgx-h100", data=False) as torch:
        first = torch.empty(39_000_000_000, dtype="f16")
        assert first.device == "device:0"
        with pytest.raises(AllocationError, match="hbm of sip0: 80 GB asked"):
            torch.empty(40_000_000_000, dtype="f16", name="second")
        torch.accelerator.set_device_index(1)
        assert torch.empty(39_000_000_000, dtype="f16").device == "device:1"
        with pytest.raises(TensorError, match="has no contents"):
            torch.empty(2).numpy()
