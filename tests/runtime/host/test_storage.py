"""``runtime/host/storage.py``: tensors of the host namespace."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.host.shared import put, run

import megatile as mt
from megatile.core.errors import MegatileError
from megatile.runtime.host.context import DeviceSelector, HostError
from megatile.runtime.host.placement import DPPolicy, PlacementError
from megatile.runtime.host.storage import ShapeMismatch, TensorError


def test_a_host_read_inside_an_unfinished_epoch_does_not_wait(torch) -> None:
    def body(rank):
        x = put(torch, np.ones(4))
        work = torch.distributed.all_reduce(x, async_op=True)
        seen = x.numpy()[0]
        work.wait()
        return seen, x.numpy()[0]

    found = run(torch, body)
    assert found[0] == (1, 4)
    assert all(after == 4 for _, after in found.values())


def test_debug_mode_warns_of_such_a_read(torch, monkeypatch) -> None:
    monkeypatch.setenv("MEGATILE_DEBUG", "1")

    def body(rank):
        x = put(torch, np.ones(4))
        work = torch.distributed.all_reduce(x, async_op=True)
        x.numpy()
        work.wait()

    with pytest.warns(UserWarning, match="is read before a collective on it is complete"):
        run(torch, body)


def test_mistakes_with_tensors(torch) -> None:
    x = torch.zeros((2, 3), name="x")
    with pytest.raises(ShapeMismatch, match=r"copy_ shape mismatch: \(3, 2\) into \(2, 3\)"):
        x.copy_(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="'x'"):
        x[0] = np.zeros(4)
    with pytest.raises(TensorError, match="6 elements"):
        x.item()
    with pytest.raises(PlacementError, match="is not a shape"):
        torch.zeros((2, -1))
    with pytest.raises(MegatileError, match="dtype 'f17' is unknown"):
        torch.zeros(2, dtype="f17")
    with pytest.raises(TensorError, match="host has no shards"):
        _ = torch.from_numpy(np.ones(2)).shards
    with pytest.raises(HostError, match="selects no device"):
        DeviceSelector("sip:x")


def test_copies_that_torch_would_share_are_not_written() -> None:
    with mt.host("ahbm") as torch:
        x = torch.ones(4, 6, dp=DPPolicy("row_wise", num_cubes=2, num_pes=1))
        for copy in (x.view(-1), x.t(), x.chunk(2, 1)[0]):
            for write in (lambda c: c.fill_(1), lambda c: c.add_(1), lambda c: c.__setitem__(0, 1)):
                with pytest.raises(TensorError, match=r"is a copy made by \w+.*clone"):
                    write(copy)
            copy.clone().fill_(2)
        assert (x.numpy() == 1).all()
